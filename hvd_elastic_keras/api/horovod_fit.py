"""`fit` as in Horovod: each worker takes a whole batch of the size given to `fit`.

This applies to models with a `DistributedOptimizer`, and to calls of `fit` with one of Horovod's
callbacks. An `ElasticCallback` among the callbacks takes precedence.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import keras

from hvd_elastic_keras.api.callback import ElasticCallback, list_that_calls
from hvd_elastic_keras.api.fit_in_elastic_run import function_around, in_reset_callbacks
from hvd_elastic_keras.api.fit_rounds import FitRounds
from hvd_elastic_keras.api.horovod_optimizer import is_distributed
from hvd_elastic_keras.api.training import Training
from hvd_elastic_keras.common import patches
from hvd_elastic_keras.common.config import LINEAR, NO_SCALING, PER_WORKER
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.keras_internals.fit_call import FitCall
from hvd_elastic_keras.observe.notices import notices

WHY = "fit with Horovod's optimizer is elastic"


class HorovodFit(ElasticCallback):
    """Trains as a script for Horovod expects. The callbacks below make it.

    The learning rate is multiplied by the number of workers. Scripts for Horovod do so with
    `hvd.size()`, but here this is 1 right after `hvd.init()`. The rate is not multiplied in a
    function of `elastic.run` whose state has reset callbacks, because the reset callbacks do it.
    """

    def __init__(self) -> None:
        function = function_around()
        self.scales = function is None or not function.state.has_reset_callbacks
        super().__init__(
            batch=PER_WORKER, lr_scaling=LINEAR if self.scales else NO_SCALING, lr_warm_up_steps=0
        )

    def _terms(self, call: FitCall, size: int) -> dict[str, Any]:
        """Multiplies `steps_per_epoch` by the present number of workers.

        An epoch then takes the same number of batches, even if the number of workers changes later.
        """
        terms = call.terms
        if call.steps_per_epoch is not None:
            terms["steps_per_epoch"] = call.steps_per_epoch * size
        return terms

    def _training(self, call: FitCall, rounds: FitRounds) -> Training:
        training = super()._training(call, rounds)
        if not rounds.goes_on:
            rate = "is multiplied by their number" if self.scales else "is up to reset callbacks"
            notices.tell(
                "[elastic] as with Horovod, each worker takes the batch that fit is given, and the "
                f"learning rate {rate}; ElasticCallback() shares the batch instead"
            )
        batches = training.train.steps(training.schedule.initial_epoch)
        for callback in call.callbacks:
            if isinstance(callback, HorovodCallback):
                callback.on_training(batches, self.scales)
        return training


class HorovodCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    """One of Horovod's callbacks. A `fit` with this callback is elastic."""

    def set_model(self, model: keras.Model) -> None:
        """Makes `fit` elastic; called by Keras when a list of callbacks gets its model."""
        super().set_model(model)
        caller = list_that_calls(self)
        if caller is None:
            return
        ours = [c for c in caller.callbacks if isinstance(c, ElasticCallback)]
        self.check(ours[0] if ours else None)
        first = next(c for c in caller.callbacks if isinstance(c, HorovodCallback))
        if not ours and first is self:
            HorovodFit().take_over(caller)

    def check(self, elastic: ElasticCallback | None) -> None:
        """Raises `ConfigurationError` if the callback cannot do its work in this `fit`."""

    def on_training(self, batches_per_epoch: int | None, scales: bool) -> None:
        """Called before the first step.

        Args:
          batches_per_epoch: batches that all workers together take in an epoch, each the batch of
            one worker; None if not known.
          scales: whether `fit` itself multiplies the learning rate by the number of workers.
        """


def watch_fit() -> None:
    """Makes `fit` elastic for models with a distributed optimizer, even without callbacks."""
    if patches.is_installed(WHY):
        return
    original = keras.Model.fit
    signature = inspect.signature(original)

    @functools.wraps(original)
    def fit(model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        call = signature.bind(model, *args, **kwargs)
        given = call.arguments.get("callbacks")
        listed = given if isinstance(given, list | tuple) else [c for c in (given,) if c]
        if not is_distributed(getattr(model, "optimizer", None)) or _starts_elastic(listed):
            return original(model, *args, **kwargs)
        if not listed and function_around() is None and _is_one_step(call.arguments):
            return _make_variables(model, call, original)
        call.arguments["callbacks"] = [*listed, HorovodCallback()]
        return original(*call.args, **call.kwargs)

    patches.install(keras.Model, "fit", fit, WHY)


def _starts_elastic(callbacks: Any) -> bool:
    kinds = (ElasticCallback, HorovodCallback, keras.callbacks.CallbackList)
    return any(isinstance(callback, kinds) for callback in callbacks)


def _is_one_step(arguments: dict[str, Any]) -> bool:
    return arguments.get("steps_per_epoch") == 1 and arguments.get("epochs", 1) == 1


def _make_variables(model: keras.Model, call: inspect.BoundArguments, original: Any) -> Any:
    """Takes one step on this worker alone. Scripts for Horovod make their variables in this way.

    Skips the step in a reset callback if the variables exist. It would only read data that other
    workers do not read.
    """
    built = model.built and model.optimizer.built
    if not in_reset_callbacks() or not built:
        return original(*call.args, **call.kwargs)
    tell_once("fit(steps_per_epoch=1) in a reset callback is left out: all variables are there")
    return keras.callbacks.History()


def tell_once(text: str) -> None:
    """Shows a line to people at the start of the training, once per process."""
    notices.tell_once(f"[elastic] {text}")


def needs_function(name: str) -> None:
    """Raises `ConfigurationError` outside of a function of `elastic.run`."""
    if function_around() is None:
        raise ConfigurationError(
            f"hvd.elastic.{name} was given to fit outside of a function of hvd.elastic.run, which "
            "alone gives its state to other workers. Call fit in such a function, or leave the "
            "callback out: callbacks=[ElasticCallback()] loses no step by itself."
        )
