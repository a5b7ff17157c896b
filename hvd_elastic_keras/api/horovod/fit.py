"""`fit` and `DistributedOptimizer` as in Horovod: each worker takes a whole batch of its own.

This applies to models with a `DistributedOptimizer`, and to calls of `fit` with one of Horovod's
callbacks. An `ElasticCallback` among the callbacks takes precedence. In the user's own loop (or
`train_on_batch`), the optimizer's `apply` averages the gradients of all workers. In `fit`, the
atomic steps of this package have averaged them already, and the optimizer works unchanged.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from typing import Any

import horovod.tensorflow
import keras
import tensorflow as tf

from hvd_elastic_keras.api.callback import ElasticCallback, list_that_calls
from hvd_elastic_keras.api.fit_in_elastic_run import (
    function_around,
    in_reset_callbacks,
)
from hvd_elastic_keras.api.fit_rounds import FitRounds
from hvd_elastic_keras.api.training import OwnSteps, Training
from hvd_elastic_keras.common import patches
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.keras_internals.fit_call import FitCall
from hvd_elastic_keras.observe.notices import notices
from hvd_elastic_keras.settings.training_config import LINEAR, NO_SCALING, PER_WORKER

_numbers = itertools.count()
"""Numbers of distributed optimizers. They agree in all processes, which run the same script."""


class Distributed:
    """A base class that `distributed` adds to the class of an optimizer."""

    _elastic_number: int

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Averages the gradients over all workers, unless an atomic step has, and applies them."""
        apply = super().apply  # type: ignore[misc]
        if OwnSteps.depth:
            return apply(grads, trainable_variables)
        averaged = [
            None if g is None else _average(g, f"distributed_{self._elastic_number}.{i}")
            for i, g in enumerate(grads)
        ]
        return apply(averaged, trainable_variables)


def distributed(optimizer: Any) -> Any:
    """Makes `apply` average gradients over all workers. Returns the same optimizer."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ConfigurationError(
            f"hvd.DistributedOptimizer got a {type(optimizer).__module__}."
            f"{type(optimizer).__name__}, expected a keras.optimizers.Optimizer of Keras 3."
        )
    if not is_distributed(optimizer):
        object.__setattr__(optimizer, "_elastic_number", next(_numbers))
        optimizer.__class__ = _distributed_class(optimizer.__class__)
    return optimizer


def is_distributed(optimizer: Any) -> bool:
    """Returns whether `distributed` has changed it, or its inner optimizer (of loss scaling)."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return isinstance(optimizer, Distributed) or (inner is not None and is_distributed(inner))


@functools.cache
def _distributed_class(kind: type[Any]) -> type[Any]:
    # It has the name and module of the original, because Keras saves and loads it under them.
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (Distributed, kind), names)


def _average(gradient: Any, name: str) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        gradient = tf.convert_to_tensor(gradient)
    return horovod.tensorflow.allreduce(gradient, op=horovod.tensorflow.Average, name=name)


class LearningRate:
    """`optimizer.lr`, as Keras 2 had it: the variable behind `optimizer.learning_rate`."""

    def __get__(self, optimizer: Any, kind: Any = None) -> Any:
        if optimizer is None:
            return self
        own = vars(optimizer).get("lr")
        rate = optimizer.learning_rate if own is None else own
        return rate.value if isinstance(rate, keras.Variable) else rate

    def __set__(self, optimizer: Any, value: Any) -> None:
        if type(optimizer).__module__.partition(".")[0] == "keras":
            optimizer.learning_rate = value
        else:  # an optimizer of the user's own may mean something else by `lr`
            vars(optimizer)["lr"] = value


def provide_lr() -> None:
    """Gives all optimizers an attribute `lr`, for scripts written for Keras 2."""
    if not hasattr(keras.optimizers.Optimizer, "lr"):
        patches.install(keras.optimizers.Optimizer, "lr", LearningRate(), "the name of Keras 2")


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
