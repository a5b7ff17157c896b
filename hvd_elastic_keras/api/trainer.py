"""`Trainer`: trains a compiled Keras model, alone or as one of the elastic workers of a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import keras

from hvd_elastic_keras.api.first_steps import (
    TRAINING_DATA,
    VALIDATION_DATA,
    try_first_examples,
)
from hvd_elastic_keras.api.fit_in_elastic_run import rounds_of_fit
from hvd_elastic_keras.api.prepare import explain_step
from hvd_elastic_keras.api.train import train
from hvd_elastic_keras.api.training import Training
from hvd_elastic_keras.data.input.interfaces import full_spec
from hvd_elastic_keras.data.input.per_worker import PerWorkerInput
from hvd_elastic_keras.data.input.pipeline import Pipeline
from hvd_elastic_keras.data.sources.iterators import check_apart
from hvd_elastic_keras.data.sources.source import DataLike, as_source, split_preprocess
from hvd_elastic_keras.keras_internals import model_building, release
from hvd_elastic_keras.keras_internals.dataset_variables import variables_read
from hvd_elastic_keras.keras_internals.learning_rate import Growth
from hvd_elastic_keras.keras_internals.model_variables import variables_of
from hvd_elastic_keras.loop.callback_runner import CallbackRunner
from hvd_elastic_keras.loop.schedule import Schedule
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.options import BATCH
from hvd_elastic_keras.settings.training_config import (
    BatchCut,
    TrainingConfig,
    check_batch_may_grow,
)
from hvd_elastic_keras.state.checkpoint.manager import CheckpointManager, Origin
from hvd_elastic_keras.state.checkpoint.places import Place
from hvd_elastic_keras.state.checkpoint.remote import checkpoints_of
from hvd_elastic_keras.step import deterministic_step
from hvd_elastic_keras.worker.membership import Membership
from hvd_elastic_keras.worker.session import Session


class Trainer:
    """Trains a Keras model on as many workers as there are right now.

    The same script trains alone (`python script.py`) and elastically
    (`python -m hvd_elastic_keras.run --num_workers=4 script.py`), to the same weights.

    Args:
      model: a compiled `keras.Model` on the TensorFlow backend.
      dataset: one of these: arrays `(x, y)` or `(x, y, sample_weight)` with the same first
        dimension; a `Source` or a deterministic `tf.data.Dataset` of such single examples; a
        function that takes the epoch (from 0) and returns a dataset; or any of these as `(source,
        preprocess)`, where `preprocess` makes such examples from the examples of the source.
      validation: like `dataset`; evaluated after every epoch if given.
      config: batch sizes, length and seed.
      callbacks: Keras callbacks. All workers run them on the same logs; callbacks that write files
        run on rank 0.
      job_dir: where checkpoints and results go; None keeps nothing. Under a launcher, the job's
        directory is used instead.
      counted: numbers of examples by "train" and "validation", for datasets that do not tell their
        own, if they have been counted already.

    Raises:
      ConfigurationError: the model is not compiled, or Keras does not run on TensorFlow, or
        TensorFlow has started with several threads per operation although `deterministic` is set.
      DataError: the data have the wrong structure.

    Example:

        trainer = Trainer(model, (x_train, y_train), validation=(x_test, y_test),
                          config=TrainingConfig(global_batch_size=128, epochs=10))
        history = trainer.fit()
    """

    def __init__(
        self,
        model: keras.Model,
        dataset: DataLike,
        *,
        validation: DataLike | None = None,
        config: TrainingConfig | None = None,
        callbacks: Iterable[keras.callbacks.Callback] = (),
        job_dir: str | Path | None = None,
        session: Session | None = None,
        counted: Mapping[str, int] | None = None,
    ) -> None:
        self._membership = Membership.of_process(session)  # from here on, errors show as one line
        release.check()
        model_building.check_compiled(model)
        if self._membership.has_others:
            model_building.check_functions_are_compiled()
        self.model = model
        self.config = config or TrainingConfig()
        self._options = env.run_options(self.config.asked)
        if self.config.batch_grows:
            check_batch_may_grow(self._options)
        if self._options.deterministic:
            deterministic_step.enable_op_determinism()
        environment = self._membership.environment
        directory = environment.job_dir if environment else job_dir
        self._job_dir = Path(directory) if directory else None
        # A worker that is alone and keeps nothing need not read the data twice in the same order.
        self._must_repeat = bool(self._job_dir or session or self._membership.has_others)
        self._data = {"train": dataset, "validation": validation}
        self._counted = dict(counted or {})
        self._read_data()
        full = full_spec(self._train)
        model_building.build(model, self._train.batch_spec, full_spec=full)
        self._cut_batches()
        self._user_callbacks = list(callbacks)
        self._fitted = False

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch, whatever the number of workers.

        If the batch grows with the workers, these are the steps that one worker alone would take.
        """
        return self._train.steps_per_epoch

    @property
    def micro_batch_size(self) -> int:
        """Examples per forward and backward pass in training."""
        return self._train.micro_batch_size

    @property
    def num_examples(self) -> int:
        """Training examples of an epoch."""
        return self._train.source.num_examples

    @property
    def num_validation_examples(self) -> int:
        """Validation examples; 0 if there is no validation."""
        return self._evaluate.source.num_examples if self._evaluate else 0

    def fit(self) -> keras.callbacks.History:
        """Trains to the end and returns the history, as `keras.Model.fit` does.

        Under a launcher, a worker that has to leave before the end (SIGTERM, `ctl remove`) ends
        its process with exit code 0.

        Raises:
          MasterUnreachableError: the launcher is gone.
          CollectiveFailedError: the same step fails again and again although no worker is lost.
          ConfigurationError: the newest checkpoint in the job directory belongs to another
            training.
        """
        rounds = rounds_of_fit(self._membership)
        rounds.agree(self.model, {})
        if self._fitted:
            self._read_data()  # passes start again, from where iterators are now
        self._fitted = True
        config = self.config
        callbacks = CallbackRunner(
            self._user_callbacks,
            self.model,
            {
                "epochs": config.epochs,
                "steps": None if config.batch_grows else self._train.steps_per_epoch,
            },
        )
        train(self._training(callbacks), rounds)
        return callbacks.history

    def explain_step(self) -> None:
        """Shows how several workers would share the training step. Traces it, and trains nothing.

        Raises:
          ConfigurationError: several workers cannot share the step.
        """
        explain_step(self._training(CallbackRunner([], self.model, {})))

    def _training(self, callbacks: CallbackRunner) -> Training:
        config = self.config
        return Training(
            model=self.model,
            schedule=Schedule(epochs=config.epochs, steps=config.steps),
            train=PerWorkerInput(self._train) if config.batch_grows else self._train,
            evaluate=self._evaluate,
            callbacks=callbacks,
            origin=self._origin,
            job_dir=self._job_dir,
            cut_is_chosen=config.cut.micro_batch_size is not None,
            options=self._options,
            growth=_growth(config),
            beside=variables_read(self._data.values()),
        )

    def _read_data(self) -> None:
        config = self.config
        self._train = self._pipeline("train", TRAINING_DATA, config.cut_batch_size)
        self._evaluate: Pipeline | None = None
        if self._must_repeat:
            check_apart(*(split_preprocess(data)[0] for data in self._data.values()))
        if self._data["validation"] is not None:
            size = config.global_batch_size
            self._evaluate = self._pipeline("validation", VALIDATION_DATA, size)
        # Another `fit` need not count the examples again.
        self._counted = {"train": self.num_examples, "validation": self.num_validation_examples}

    def _cut_batches(self) -> None:
        """Cuts batches to suit the layers of the model, which must be built for that."""
        cut = self.config.cut
        by_micro_batch = self._options.batch_norm != BATCH
        has_batch_norm = by_micro_batch and model_building.has_batch_norm(self.model)
        self._train.cut_into(cut.of(self._train.global_batch_size, has_batch_norm))
        if self._evaluate is not None:
            # An evaluation uses the moving averages of batch normalisation, so any cut will do.
            size = self._evaluate.global_batch_size
            self._evaluate.cut_into(BatchCut(cut.micro_batch_size).of(size, has_batch_norm=False))

    def _pipeline(self, split: str, name: str, batch_size: int) -> Pipeline:
        """Returns batches that are not cut yet."""
        trains = split == "train"
        source = as_source(
            self._data[split],
            seed=self.config.seed,
            shuffle=trains and self.config.shuffle,
            name=name,
            num_examples=self._counted.get(split),
            must_repeat=self._must_repeat,
        )
        drop_remainder = trains and self.config.drop_remainder
        return Pipeline(source, batch_size, batch_size, drop_remainder)

    @property
    def _origin(self) -> Origin:
        return Origin.of(self.config, self.micro_batch_size, self.num_examples)

    def check_checkpoint(self, job_dir: Path) -> Place | None:
        """Returns the checkpoint in `job_dir` from which this training would continue, if any.

        Raises:
          ConfigurationError: the checkpoint was made with another model, other data, batch sizes or
            seed.
        """
        variables = variables_of(self.model).all
        directory = checkpoints_of(job_dir, 1, self._options.checkpoint_dir)
        return CheckpointManager(directory, self._origin).check_newest(variables)

    def try_first_examples(self) -> None:
        """Computes the loss of a few examples; see `first_steps.try_first_examples`.

        Raises:
          DataError: the model cannot compute the loss.
        """
        for pipeline, name in ((self._train, TRAINING_DATA), (self._evaluate, VALIDATION_DATA)):
            if pipeline is not None:
                try_first_examples(self.model, pipeline, name)


def _growth(config: TrainingConfig) -> Growth | None:
    if not config.batch_grows:
        return None
    return Growth(
        reference_batch_size=config.global_batch_size,
        batch_size_per_worker=config.batch_size_per_worker,
        lr_scaling=config.lr_scaling,
        lr_warm_up_steps=config.lr_warm_up_steps,
    )
