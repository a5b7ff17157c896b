"""`ElasticCallback`: makes an unchanged `keras.Model.fit` elastic."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import keras

from hvd_elastic_keras import env
from hvd_elastic_keras.checkpoint.manager import Origin
from hvd_elastic_keras.config import (
    DEFAULT_LR_WARM_UP_STEPS,
    EVEN,
    GLOBAL,
    LINEAR,
    PER_WORKER,
    SPEED,
    BatchCut,
    check_batch_may_grow,
    check_choices,
    check_growth,
)
from hvd_elastic_keras.data.fit_input import (
    check_apart,
    check_order,
    input_of,
    per_worker_input_of,
)
from hvd_elastic_keras.data.passes import Passes
from hvd_elastic_keras.data.pipeline import FitInput
from hvd_elastic_keras.training import determinism, keras_release, keras_support
from hvd_elastic_keras.training.callback_runner import CallbackRunner
from hvd_elastic_keras.training.fit_call import (
    BATCH_END_GETS_LAST_STEP,
    FitCall,
    running_fit,
)
from hvd_elastic_keras.training.learning_rate_scale import Growth
from hvd_elastic_keras.training.runtime import Training, train
from hvd_elastic_keras.training.schedule import Schedule
from hvd_elastic_keras.training.user_state import UserState
from hvd_elastic_keras.worker.membership import Membership


class ElasticCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    """Trains with `keras.Model.fit` on as many workers as there are right now.

        model.fit(x, y, batch_size=128, epochs=10, callbacks=[ElasticCallback()])

    The script trains alone (`python script.py`) and elastically
    (`python -m hvd_elastic_keras.run --num_workers=4 script.py`), to the same weights. Workers
    share each batch: the batch that `fit` is given is the global batch, whatever their number.
    Other callbacks run on all workers, on the same logs; those that write files on rank 0.

    It takes the place of `fit`'s own loop, with the atomic steps of `Trainer`; arguments, order of
    hooks, `History` and logs are those of `fit`. So are the weights, up to rounding, but for what
    depends on how a batch is cut (batch normalisation, random layers, losses that divide by the
    sum of masks or weights) and for the order of shuffled arrays.

    Args:
      micro_batch_size: examples per forward and backward pass. A batch is cut into micro-batches,
        and workers compute whole ones. None: an eighth of the batch, but at least 16 examples if
        the model has batch normalisation, which sees one micro-batch at a time. With
        `batch="per_worker"`, where no batch is shared: the whole batch of a worker.
      seed: the order of shuffled arrays follows from it. None: that of
        `keras.utils.set_random_seed`, else 0.
      checkpoint_every_n_epochs: how often rank 0 writes a checkpoint to the job directory, from
        which a job goes on that has lost all workers or was interrupted. 0: at the end only.
      deterministic: whether the weights after every step are bit-identical whatever the number of
        workers, kills and joins. It costs time and fixes settings of the whole process: one thread
        for each operation, and TensorFlow's op determinism. `run --deterministic script.py` turns
        it on, too. Alone, start the script with TF_NUM_INTRAOP_THREADS=1.
      balance: "even" shares of each batch, or shares that follow the workers' "speed": who is
        persistently slower computes fewer micro-batches of the same batch, and the result stays
        the same. `run --balance=speed script.py` turns it on, too.
      audit: whether each epoch leaves a ledger in the job directory that says which examples were
        used in which step, by whom, and whether each was used exactly once. `run --audit script.py`
        turns it on, too.
      batch: "global", or "per_worker": the batch that `fit` is given is what one worker takes per
        step, so that the batch of a step grows with the workers; of a dataset, each takes a whole
        batch. The learning rate belongs to the batch of one worker. Epochs take fewer steps the
        more workers there are, and the result depends on their number.
      lr_scaling: only with "per_worker": the learning rate is multiplied by the number of workers
        ("linear", as is usual with Horovod), by its square root ("sqrt"), or stays ("none"). The
        optimizer's `learning_rate`, which callbacks see and set, is the one before that. Weight
        decay that Keras multiplies by the learning rate follows it.
      lr_warm_up_steps: steps over which the learning rate gets to a larger value when workers have
        come. A smaller value is taken at once.
      on_membership_change: called on every worker that was there before, with the old and the new
        number of workers, before newcomers get the state.

    Attributes:
      state: values of the user's that are committed with every step and given to late joiners;
        see `UserState`.

    Raises:
      ConfigurationError: when `fit` begins, with the remedy: the model or the data cannot be
        trained by several workers; or at once, if TensorFlow has too many threads for
        `deterministic`.
    """

    def __init__(
        self,
        *,
        micro_batch_size: int | None = None,
        seed: int | None = None,
        checkpoint_every_n_epochs: int = 1,
        deterministic: bool = False,
        balance: str = EVEN,
        audit: bool = False,
        batch: str = GLOBAL,
        lr_scaling: str = LINEAR,
        lr_warm_up_steps: int = DEFAULT_LR_WARM_UP_STEPS,
        on_membership_change: Callable[[int, int], None] | None = None,
    ) -> None:
        super().__init__()
        self._cut = BatchCut(micro_batch_size)
        check_choices(
            seed=0 if seed is None else seed,
            checkpoint_every_n_epochs=checkpoint_every_n_epochs,
            deterministic=deterministic,
            audit=audit,
            balance=balance,
        )
        check_growth(batch, lr_scaling, lr_warm_up_steps)
        self._seed = seed
        self._checkpoint_every_n_epochs = checkpoint_every_n_epochs
        self._deterministic = deterministic or env.deterministic()
        self._audited = audit or env.audit()
        self._follows_speed = SPEED in (balance, env.balance())
        self._batch_grows = batch == PER_WORKER
        self._lr_scaling, self._lr_warm_up_steps = lr_scaling, lr_warm_up_steps
        if self._batch_grows:
            check_batch_may_grow(self._deterministic, SPEED if self._follows_speed else EVEN)
        self._on_membership_change = on_membership_change
        self.state = UserState()
        if self._deterministic:
            determinism.enable()

    def set_model(self, model: keras.Model) -> None:
        """Called by Keras when a list of callbacks gets its model: replaces that list's begin."""
        super().set_model(model)
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_locals.get("self") is self:
            frame = frame.f_back  # `set_model` of a subclass
        caller = None if frame is None else frame.f_locals.get("self")
        if not isinstance(caller, keras.callbacks.CallbackList):
            return
        # Before any `on_train_begin`: some callbacks open files then, which only rank 0 may. It
        # stays, for a list that the user made and gives to `fit` again.
        caller.on_train_begin = lambda logs=None: self._take_over(caller, sys._getframe(1))

    def _take_over(self, callbacks: Any, frame: types.FrameType) -> None:
        """Runs the whole training; afterwards `fit` finds that no epoch is left."""
        membership = Membership.of_process()
        keras_release.check()
        call = running_fit(frame)
        if call.epochs <= call.initial_epoch:
            type(callbacks).on_train_begin(callbacks)  # there is nothing to take over
            return
        train(self._training(call, membership), membership)

        def end(logs: Any = None) -> None:
            del callbacks.on_train_end
            call.model._initial_epoch = None

        call.model._initial_epoch = call.epochs
        callbacks.on_train_end = end

    def _training(self, call: FitCall, membership: Membership) -> Training:
        keras_support.check_fit(call.model)
        alone = membership.environment is None
        seed = self._seed if self._seed is not None else keras_support.random_seed()
        schedule = Schedule(
            epochs=call.epochs,
            initial_epoch=call.initial_epoch,
            validation_freq=call.validation_freq,
            steps_per_execution=int(call.model.steps_per_execution),
            ends_with_last=BATCH_END_GETS_LAST_STEP,
            checkpoint_every_n_epochs=self._checkpoint_every_n_epochs,
        )
        if not alone:
            for adapter, name in ((call.adapter, "x"), (call.validation, "validation_data")):
                check_order(adapter, name)
            check_apart(call.adapter, call.validation)
        source = self._input(call, schedule, seed)
        environment = membership.environment
        return Training(
            model=call.model,
            schedule=schedule,
            train=source,
            evaluate=self._validation_input(call, schedule, seed),
            callbacks=CallbackRunner(self._others(call, alone), call.model, params=None),
            origin=Origin(
                global_batch_size=source.global_batch_size,
                micro_batch_size=source.micro_batch_size,
                seed=seed,
                num_examples=source.num_examples,
                batch=PER_WORKER if self._batch_grows else GLOBAL,
                batch_size_per_worker=source.global_batch_size if self._batch_grows else 0,
            ),
            job_dir=None if environment is None else environment.job_path,
            deterministic=self._deterministic,
            follows_speed=self._follows_speed,
            audited=self._audited,
            growth=self._growth(source.global_batch_size) if self._batch_grows else None,
            # Alone, Keras's own progress bar is among the callbacks.
            verbose=0 if alone else call.verbose,
            user=self.state,
            on_membership_change=self._on_membership_change,
        )

    def _input(self, call: FitCall, schedule: Schedule, seed: int) -> FitInput:
        source = (per_worker_input_of if self._batch_grows else input_of)(
            call.adapter,
            passes=Passes(call.steps_per_epoch),
            index_of=lambda epoch: epoch - schedule.initial_epoch,
            micro_batch_size=lambda size: self._micro_batch_size(size, call.model),
            seed=seed,
            name="x",
        )
        keras_support.build(call.model, source.batch_spec, source.first_batch())
        return source

    def _micro_batch_size(self, size: int, model: keras.Model) -> int:
        if self._batch_grows and self._cut.micro_batch_size is None:
            return size  # nobody shares it
        return self._cut.of(size, keras_support.has_batch_norm(model))

    def _growth(self, batch_size: int) -> Growth:
        return Growth(batch_size, batch_size, self._lr_scaling, self._lr_warm_up_steps)

    def _validation_input(self, call: FitCall, schedule: Schedule, seed: int) -> FitInput | None:
        if call.validation is None:
            return None
        return input_of(
            call.validation,
            passes=Passes(call.validation_steps, goes_on=False),
            index_of=schedule.evaluations_before,
            # The moving averages of batch normalisation are used here: any cut will do.
            micro_batch_size=lambda size: self._cut.of(size, has_batch_norm=False),
            seed=seed,
            name="validation_data",
        )

    def _others(self, call: FitCall, alone: bool) -> list[keras.callbacks.Callback]:
        unwanted = (ElasticCallback,) if alone else (ElasticCallback, keras.callbacks.ProgbarLogger)
        return [c for c in call.callbacks if not isinstance(c, unwanted)]
