"""`ElasticCallback`: makes an unchanged `keras.Model.fit` elastic."""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Callable
from typing import Any

import keras
from msgspec import UNSET, UnsetType

from hvd_elastic_keras.api.fit_in_elastic_run import rounds_of_fit
from hvd_elastic_keras.api.fit_inputs import FitInputs, check_order
from hvd_elastic_keras.api.fit_rounds import FitRounds
from hvd_elastic_keras.api.prepare import warn_of_batch_norm, with_batch_norm
from hvd_elastic_keras.api.train import train
from hvd_elastic_keras.api.training import Training
from hvd_elastic_keras.common.errors import ConfigurationError, show_in_one_line
from hvd_elastic_keras.data.input.of_adapter import (
    OrderSeed,
    check_no_steps_per_epoch,
    check_repeatable,
)
from hvd_elastic_keras.keras_internals import model_building, release
from hvd_elastic_keras.keras_internals.dataset_variables import variables_read
from hvd_elastic_keras.keras_internals.fit_call import (
    BATCH_END_GETS_LAST_STEP,
    FitCall,
    running_fit,
    set_initial_epoch,
)
from hvd_elastic_keras.keras_internals.global_seed import random_seed
from hvd_elastic_keras.keras_internals.learning_rate import Growth
from hvd_elastic_keras.loop.callback_runner import CallbackRunner
from hvd_elastic_keras.loop.schedule import Schedule
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.options import BATCH
from hvd_elastic_keras.settings.training_config import (
    DEFAULT_LR_WARM_UP_STEPS,
    GLOBAL,
    LINEAR,
    PER_WORKER,
    BatchCut,
    check_batch_may_grow,
    check_growth,
    check_seed,
)
from hvd_elastic_keras.state.checkpoint.manager import Origin
from hvd_elastic_keras.state.parts import UserState
from hvd_elastic_keras.step import deterministic_step
from hvd_elastic_keras.worker import other_launchers

_NO_MODEL = object()


class ElasticCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    """Trains with `keras.Model.fit` on as many workers as there are right now.

        model.fit(x, y, batch_size=128, epochs=10, callbacks=[ElasticCallback()])

    The script trains alone (`python script.py`) and elastically
    (`python -m hvd_elastic_keras.run --num_workers=4 script.py`), to the same weights. Workers
    share each batch: the batch given to `fit` is the global batch, whatever the number of workers.
    Other callbacks run on all workers, on the same logs; callbacks that write files run on rank 0.

    The callback replaces `fit`'s own loop with the atomic steps of `Trainer`. Arguments, order of
    hooks, `History` and logs stay the same as in plain `fit`. The weights are also the same, up to
    rounding. Batch normalisation normalises over the whole batch of all workers.

    The arguments from `checkpoint_every_n_epochs` to `audit` are also options of `run`. Options on
    the command line take precedence over these arguments. The arguments take precedence over a file
    of flags and the environment.

    Args:
      micro_batch_size: examples of a micro-batch. A batch is cut into micro-batches, and each
        worker computes whole micro-batches, in one pass if memory holds them. None: an eighth of
        the batch, but at least 16 examples if batch normalisation normalises over each micro-batch;
        see `BatchCut`. With `batch="per_worker"`, no batch is shared, and
        None means the whole batch of a worker.
      seed: determines the order of shuffled arrays and of the batches of a `PyDataset`, which
        differs from epoch to epoch. None: the order of plain `fit` where the seed of
        `keras.utils.set_random_seed` determines it; otherwise the order follows from that seed, or
        from 0 if none was set.
      checkpoint_every_n_epochs, checkpoint_every_n_steps, checkpoint_every_minutes: how often rank
        0 writes a checkpoint to the job directory, in the background. 0 turns one of them off; the
        first one that is due counts. A job that lost all workers or was interrupted continues from
        its newest checkpoint. A checkpoint is always written when the job stops, and at the end.
      keep_checkpoints: how many of the newest checkpoints to keep.
      keep_best: a metric, such as "val_loss". The model of the epoch in which it was best is kept
        in the job directory, as `best.keras`. "my_metric:max" or "my_metric:min" says which values
        are better, if Keras does not know.
      deterministic: whether the weights after every step are bit-identical for any number of
        workers, kills and joins. This costs time and fixes settings of the whole process: one
        thread for each operation (or `run --deterministic_threads`), and TensorFlow's op
        determinism. `run --deterministic script.py` turns it on, and `--nodeterministic` turns it
        off. To train alone, start the script with TF_NUM_INTRAOP_THREADS=1.
      balance: "even" gives equal shares of each batch. With "speed", a worker that is persistently
        slower computes fewer micro-batches of the same batch; the result stays the same.
      compression: "none" sends gradients between workers unchanged. "fp16" and "bf16" round them,
        which takes half of the time on a slow network.
      batch_norm: "batch" normalises over the whole batch, as plain Keras does, and needs more
        rounds of collectives in a step. "micro_batch" normalises over each micro-batch by itself.
        "auto", the default: the whole batch, but each micro-batch if a step may have one round
        only: with `deterministic`, with `balance="speed"`, and where micro-batches are computed one
        after the other. A warning says so. With `batch="per_worker"`, it is each micro-batch.
      audit: whether each epoch leaves a ledger in the job directory. The ledger says which worker
        used which examples in which step, and whether each example was used exactly once.
      batch: "global": the workers share the batch given to `fit`. "per_worker": each worker takes a
        batch of that size per step (of a dataset, a whole batch), so the batch of a step grows with
        the number of workers. The learning rate then belongs to the batch of one worker. With more
        workers, an epoch takes fewer steps, and the result depends on the number of workers.
      lr_scaling: only with "per_worker". "linear", as is usual with Horovod, multiplies the
        learning rate by the number of workers. "sqrt" multiplies it by the square root of that
        number. "none" leaves it unchanged. The optimizer's `learning_rate`, which callbacks see and
        set, is the value before scaling. Weight decay that Keras multiplies by the learning rate is
        scaled with it.
      lr_warm_up_steps: steps over which the learning rate rises to a larger value when workers
        join. A smaller value applies at once.
      on_membership_change: called with the old and the new number of workers, on every worker that
        was there before, before newcomers get the state.

    Attributes:
      batch_grows: whether `batch` is "per_worker".
      state: the user's own values, committed with every step and given to late joiners; see
        `UserState`.

    Raises:
      ConfigurationError: several workers cannot train this model or use this data (raised when
        `fit` begins, with the remedy), or TensorFlow has too many threads for `deterministic`
        (raised at once).
    """

    def __init__(
        self,
        *,
        micro_batch_size: int | None = None,
        seed: int | None = None,
        checkpoint_every_n_epochs: int | UnsetType = UNSET,
        checkpoint_every_n_steps: int | UnsetType = UNSET,
        checkpoint_every_minutes: float | UnsetType = UNSET,
        keep_checkpoints: int | UnsetType = UNSET,
        keep_best: str | UnsetType = UNSET,
        deterministic: bool | UnsetType = UNSET,
        balance: str | UnsetType = UNSET,
        compression: str | UnsetType = UNSET,
        batch_norm: str | UnsetType = UNSET,
        audit: bool | UnsetType = UNSET,
        batch: str = GLOBAL,
        lr_scaling: str = LINEAR,
        lr_warm_up_steps: int = DEFAULT_LR_WARM_UP_STEPS,
        on_membership_change: Callable[[int, int], None] | None = None,
    ) -> None:
        super().__init__()
        other_launchers.refuse()
        self._cut = BatchCut(micro_batch_size, batch)
        check_seed(0 if seed is None else seed)
        asked = dict[str, Any](
            checkpoint_every_n_epochs=checkpoint_every_n_epochs,
            checkpoint_every_n_steps=checkpoint_every_n_steps,
            checkpoint_every_minutes=checkpoint_every_minutes,
            keep_checkpoints=keep_checkpoints,
            keep_best=keep_best,
            deterministic=deterministic,
            balance=balance,
            compression=compression,
            batch_norm=batch_norm,
            audit=audit,
        )
        check_growth(batch, lr_scaling, lr_warm_up_steps)
        self._seed = seed
        self._options = env.run_options(asked)
        self.batch_grows = batch == PER_WORKER
        self._lr_scaling, self._lr_warm_up_steps = lr_scaling, lr_warm_up_steps
        if self.batch_grows:
            check_batch_may_grow(self._options)
        self._on_membership_change = on_membership_change
        self.state = UserState()
        if self._options.deterministic:
            deterministic_step.enable_op_determinism()

    def set_model(self, model: Any = _NO_MODEL) -> None:
        """Takes over the `fit` whose list of callbacks gets its model; called by Keras.

        Raises:
          ConfigurationError: the list holds the class, so that Keras gives the model as `self`.
        """
        if model is _NO_MODEL:
            show_in_one_line()
            raise ConfigurationError(
                "callbacks has the class ElasticCallback, expected one of its instances: write "
                "ElasticCallback() with brackets."
            )
        super().set_model(model)
        caller = list_that_calls(self)
        if caller is not None:
            self.take_over(caller)

    def take_over(self, callbacks: Any) -> None:
        """Makes the `fit` that begins with this list of callbacks an elastic training."""
        # This comes before any `on_train_begin`: some callbacks open files there, which only rank 0
        # may do. The replacement stays, because the user may give the same list to `fit` again.
        callbacks.on_train_begin = lambda logs=None: self._run(callbacks, sys._getframe(1))

    def _run(self, callbacks: Any, frame: types.FrameType) -> None:
        """Runs the whole training. Afterwards, `fit` finds no epoch left to train."""
        rounds = rounds_of_fit()
        release.check()
        fit = running_fit(frame)
        _check_one(fit.callbacks)
        call = self._terms_of_all(fit, rounds)
        if call.epochs <= call.initial_epoch:
            type(callbacks).on_train_begin(callbacks)  # there is nothing to take over
            return
        train(self._training(call, rounds), rounds)

        def end(logs: Any = None) -> None:
            del callbacks.on_train_end
            set_initial_epoch(call.model, None)

        set_initial_epoch(call.model, fit.epochs)
        callbacks.on_train_end = end

    def _terms_of_all(self, call: FitCall, rounds: FitRounds) -> FitCall:
        """Returns the call with terms that all workers agree on.

        In `elastic.run`, other workers may have called `fit` with other values.
        """
        terms = self._terms(call, rounds.size)
        if rounds.called_again and rounds.membership.has_others:
            check_repeatable(call.adapter)
        return dataclasses.replace(call, **rounds.agree(call.model, terms))

    def _terms(self, call: FitCall, size: int) -> dict[str, Any]:
        """Returns the length of the training for a `fit` called among `size` workers."""
        if self.batch_grows:
            check_no_steps_per_epoch(call.steps_per_epoch)
        return call.terms

    def _training(self, call: FitCall, rounds: FitRounds) -> Training:
        model_building.check_fit(call.model)
        options = with_batch_norm(
            self._options, self.batch_grows, self._cut.micro_batch_size is not None
        )
        membership = rounds.membership
        alone = not membership.has_others
        if not alone:
            model_building.check_functions_are_compiled()
        seed = self._seed if self._seed is not None else random_seed()
        schedule = Schedule(
            epochs=call.epochs,
            initial_epoch=call.initial_epoch,
            validation_freq=call.validation_freq,
            steps_per_execution=int(call.model.steps_per_execution),
            ends_with_last=BATCH_END_GETS_LAST_STEP,
        )
        check_order(call, alone=alone)
        # Inputs of an unfinished `fit` are used again: reading the data again might change its
        # order.
        prepared = rounds.prepared_for(call.data, call.model)
        kept = [] if prepared is None else [runner.input for runner in prepared.runners]
        source, evaluate = kept[0] if kept else None, kept[1] if len(kept) > 1 else None
        if source is None:
            inputs = FitInputs(
                call, schedule, OrderSeed(seed, self._seed is not None), self._cut, alone=alone
            )
            source = inputs.training(
                grows=self.batch_grows, over_micro_batches=options.batch_norm != BATCH
            )
            warn_of_batch_norm(self._options, options, call.model, source)
            evaluate = inputs.evaluation(source)
            source.call_hooks(evaluate, schedule.evaluates_after, schedule.initial_epoch)
        environment = membership.environment
        return Training(
            model=call.model,
            schedule=schedule,
            train=source,
            evaluate=evaluate,
            callbacks=CallbackRunner(
                self._others(call, alone), call.model, params=None, data_draw=call.data_may_draw
            ),
            origin=Origin(
                global_batch_size=source.global_batch_size,
                micro_batch_size=source.micro_batch_size,
                seed=seed,
                num_examples=source.num_examples,
                batch=PER_WORKER if self.batch_grows else GLOBAL,
                batch_size_per_worker=source.global_batch_size if self.batch_grows else 0,
            ),
            job_dir=None if environment is None else environment.job_path,
            cut_is_chosen=self._cut.micro_batch_size is not None,
            options=options,
            growth=self._growth(source.global_batch_size) if self.batch_grows else None,
            # Alone, Keras's own progress bar is among the callbacks.
            verbose=0 if alone else call.verbose,
            user=self.state,
            on_membership_change=self._on_membership_change,
            data=call.data,
            beside=variables_read(call.data),
        )

    def _growth(self, batch_size: int) -> Growth:
        return Growth(batch_size, batch_size, self._lr_scaling, self._lr_warm_up_steps)

    def _others(self, call: FitCall, alone: bool) -> list[keras.callbacks.Callback]:
        unwanted = (ElasticCallback,) if alone else (ElasticCallback, keras.callbacks.ProgbarLogger)
        return [c for c in call.callbacks if not isinstance(c, unwanted)]


def _check_one(callbacks: list[keras.callbacks.Callback]) -> None:
    """Raises `ConfigurationError` if several `ElasticCallback`s would take over the same `fit`."""
    count = sum(isinstance(callback, ElasticCallback) for callback in callbacks)
    if count > 1:
        raise ConfigurationError(
            f"fit was given {count} ElasticCallbacks, expected one: it takes over the whole "
            "training, and arguments of the others would be lost. Leave one, with the arguments of "
            "all of them."
        )


def list_that_calls(callback: keras.callbacks.Callback) -> Any:
    """Returns the Keras list of callbacks that called `set_model`; None for another caller."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_locals.get("self") is callback:
        frame = frame.f_back  # `set_model` of a subclass
    caller = None if frame is None else frame.f_locals.get("self")
    return caller if isinstance(caller, keras.callbacks.CallbackList) else None
