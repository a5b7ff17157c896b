"""`Trainer`: trains a compiled Keras model, alone or as one of a job's elastic workers."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import keras

from hvd_elastic_keras import env, files, protocol
from hvd_elastic_keras.checkpoint.manager import CheckpointManager, Origin
from hvd_elastic_keras.config import TrainingConfig
from hvd_elastic_keras.data.pipeline import Pipeline
from hvd_elastic_keras.data.source import DataLike, as_source
from hvd_elastic_keras.errors import ConfigurationError, WorkerLeavingError
from hvd_elastic_keras.training import keras_support
from hvd_elastic_keras.training.callback_runner import CallbackRunner
from hvd_elastic_keras.training.change_flag import ChangeFlag
from hvd_elastic_keras.training.loop import Durable, PhaseRunner, TrainingLoop
from hvd_elastic_keras.training.progress import ProgressDisplay
from hvd_elastic_keras.training.run_state import RunState
from hvd_elastic_keras.training.step import AtomicStep
from hvd_elastic_keras.training.variables import variables_of
from hvd_elastic_keras.training.warm_up import warm_up
from hvd_elastic_keras.worker.communicator import Communicator
from hvd_elastic_keras.worker.session import (
    ElasticSession,
    Session,
    SoloSession,
    session_of_process,
)

log = logging.getLogger(__name__)


class Trainer:
    """Trains a Keras model on as many workers as there are.

    The same script trains alone (`python script.py`) and elastically
    (`python -m hvd_elastic_keras.run --num_workers=4 script.py`), to the same weights.

    Args:
      model: a compiled `keras.Model` on the TensorFlow backend.
      dataset: arrays `(x, y)` or `(x, y, sample_weight)` with the same first dimension; or a
        deterministic `tf.data.Dataset` of single examples of that structure; or a function from
        the epoch (from 0) to such a dataset, for another order in every epoch.
      validation: like `dataset`; evaluated after every epoch if given.
      config: batch sizes, length and seed.
      callbacks: Keras callbacks. All workers run them on the same logs; those that write files
        run on rank 0.
      job_dir: where checkpoints and results go; None keeps nothing. Under a launcher it is
        the job's.

    Raises:
      ConfigurationError: the model is not compiled, or Keras does not run on TensorFlow.
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
    ) -> None:
        keras_support.check_versions()
        keras_support.check_compiled(model)
        self._environment = env.worker_environment()
        self.model = model
        self.config = config or TrainingConfig()
        self._own_session: ElasticSession | None = None
        if session is None and self._environment is not None:
            self._own_session = session_of_process(self._environment)
        self._session = session or self._own_session or SoloSession()
        directory = self._environment.job_dir if self._environment else job_dir
        self._job_dir = Path(directory) if directory else None
        self._train = self._pipeline(dataset, "the training data", self.config.shuffle)
        self._evaluate = (
            None
            if validation is None
            else self._pipeline(validation, "the validation data", shuffle=False)
        )
        keras_support.build(model, self._train.source.element_spec)
        self._user_callbacks = list(callbacks)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch, whatever the number of workers."""
        return self._train.steps_per_epoch

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
          CollectiveFailedError: the same step fails again and again although nobody is lost.
          ConfigurationError: the newest checkpoint in the job directory is of another training.
        """
        if self._own_session is not None and self._own_session.finished:
            raise ConfigurationError(
                "fit() was called a second time in a job, which trains once. Train the rest in a "
                "job of its own, from the saved model."
            )
        began = time.monotonic()
        communicator = self._communicator()
        variables = variables_of(self.model)
        change_flag = ChangeFlag(self._session)
        train = self._phase(self._train, change_flag, train=True)
        evaluate = self._phase(self._evaluate, change_flag, train=False) if self._evaluate else None
        callbacks = CallbackRunner(
            self._user_callbacks,
            self.model,
            epochs=self.config.epochs,
            steps=self._train.steps_per_epoch,
        )
        self.model.reset_metrics()
        self.model.stop_training = False
        warm_up(communicator, variables, [p for p in (train, evaluate) if p])
        state = RunState(self.model, variables, callbacks)
        self._session.on_change(change_flag.refresh)
        warm_up_s = time.monotonic() - began
        self._session.join(communicator, self.config.num_micro_batches, warm_up_s)
        loop = TrainingLoop(
            config=self.config,
            session=self._session,
            communicator=communicator,
            state=state,
            train=train,
            evaluate=evaluate,
            callbacks=callbacks,
            change_flag=change_flag,
            display=ProgressDisplay(self._session.show, self._interactive),
            durable=self._durable(state, callbacks.history),
        )
        try:
            loop.run()
        except WorkerLeavingError as error:
            if self._own_session is None:
                raise
            # In the user's script: there is nothing left to do for this process.
            log.info("leaving: %s", error)
            self._own_session.close()
            raise SystemExit(0) from error
        return callbacks.history

    @property
    def _interactive(self) -> bool:
        return self._environment.interactive if self._environment else sys.stdout.isatty()

    def _phase(self, pipeline: Pipeline, change_flag: ChangeFlag, train: bool) -> PhaseRunner:
        step = AtomicStep(
            self.model,
            pipeline.source.element_spec,
            self.config.num_micro_batches,
            change_flag.variable,
            train,
        )
        return PhaseRunner(pipeline, step)

    def _pipeline(self, data: DataLike, name: str, shuffle: bool) -> Pipeline:
        source = as_source(data, seed=self.config.seed, shuffle=shuffle, name=name)
        return Pipeline(source, self.config.global_batch_size, self.config.micro_batch_size)

    def _communicator(self) -> Communicator:
        environment = self._environment
        if environment is None:
            return Communicator("lo", "localhost", gloo_timeout_s=30, master=None)
        host, port = environment.master.rsplit(":", 1)
        return Communicator(
            environment.iface,
            environment.hostname,
            environment.gloo_timeout_s,
            master=(host, int(port)),
        )

    def check_checkpoint(self, job_dir: Path) -> Path | None:
        """The checkpoint this training would go on from, if there is one in `job_dir`.

        Raises:
          ConfigurationError: it was made with other data, batch sizes or seed.
        """
        return self._checkpoints(job_dir).check_newest()

    def _checkpoints(self, job_dir: Path) -> CheckpointManager:
        return CheckpointManager(job_dir, Origin.of(self.config, self.num_examples))

    def _durable(self, state: RunState, history: keras.callbacks.History) -> Durable:
        directory = self._job_dir
        if directory is None:
            return Durable(_nothing, _nothing, _nothing, exists=lambda: False)
        directory.mkdir(parents=True, exist_ok=True)
        manager = self._checkpoints(directory)
        variables = [v.value for v in variables_of(self.model).all]

        def save_checkpoint() -> None:
            step = state.cursor.global_step
            path = manager.save(step, variables, state.to_json())
            self._session.record("checkpoint_saved", step=step, path=str(path))

        def save_results() -> None:
            files.write_atomically(directory / files.MODEL, self.model.save)
            files.write_json(
                directory / files.HISTORY, {"epoch": history.epoch, "history": history.history}
            )

        def load_newest() -> None:
            found = manager.load_newest(variables)
            if found is None:
                return
            path, run = found
            state.from_json(run)
            step = state.cursor.global_step
            self._session.record(protocol.CHECKPOINT_LOADED, step=step, path=str(path))
            log.info("going on from the checkpoint of step %d: %s", step, path)

        return Durable(
            save_checkpoint, save_results, load_newest, lambda: manager.check_newest() is not None
        )


def _nothing() -> None:
    return None
