"""Builds a model by a trace of its own `train_step`, as plain Keras does while it trains."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from hvd_elastic_keras.keras_internals.model_variables import layers_of, optimizers_of
from hvd_elastic_keras.keras_internals.traced_graphs import inlined_functions

_TRACED = "_elastic_traced"
"""Attribute of a model: what a trace of its step has built."""


def has_own_step(model: keras.Model) -> bool:
    """Whether a model has its own `train_step`, which alone knows what becomes of a batch."""
    return type(model).train_step is not keras.Model.train_step


def built_by_trace(model: keras.Model, batch_spec: Any, *, evaluates: bool) -> bool:
    """Lets a trace of `train_step` make all variables, as in plain Keras. Says whether it could.

    Args:
      evaluates: whether a trace of `test_step` follows.
    """
    known = _Traced.of(model, batch_spec, evaluates)
    if known.is_same(getattr(model, _TRACED, None)):  # an earlier `fit` has done it
        return True
    applied: dict[int, tuple[Any, list[Any]]] = {}
    with nothing_applied(optimizers_of(model), applied, traces=True):
        traced = _is_traceable(model.train_step, batch_spec)
        complete = traced and (not evaluates or _is_traceable(model.test_step, batch_spec))
    clear_losses(model)
    for optimizer, variables in applied.values() if traced else ():
        if not optimizer.built:
            optimizer.build(variables)
    if complete:
        object.__setattr__(model, _TRACED, _Traced.of(model, batch_spec, evaluates))
    return complete


def clear_losses(model: keras.Model) -> None:
    """Removes the losses that layers have added in a trace which is of no more use."""
    model._clear_losses()


@dataclasses.dataclass(frozen=True)
class _Traced:
    """What a model was when its step was traced. Another `compile` brings other objects."""

    objects: tuple[Any, ...]
    numbers: tuple[Any, ...]

    @classmethod
    def of(cls, model: keras.Model, batch_spec: Any, evaluates: bool) -> _Traced:
        objects = (*optimizers_of(model), model._compile_metrics, model._compile_loss)
        counts = len(layers_of(model)), len(model.variables)
        return cls(objects, (*counts, repr(batch_spec), evaluates))

    def is_same(self, other: _Traced | None) -> bool:
        if other is None or len(self.objects) != len(other.objects):
            return False
        pairs = zip(self.objects, other.objects, strict=True)
        return self.numbers == other.numbers and all(one is two for one, two in pairs)


def _is_traceable(step: Callable[[Any], Any], batch_spec: Any) -> bool:
    """Traces a step, and says whether it could be traced.

    TensorFlow gives variables their values only after the whole trace. If it fails, they get them
    here: a layer that holds them is built.
    """
    leaves = tf.nest.flatten(batch_spec)
    made: list[tuple[tf.Variable, Any]] = []

    def note(next_creator: Callable[..., tf.Variable], **arguments: Any) -> tf.Variable:
        made.append((next_creator(**arguments), arguments["initial_value"]))
        return made[-1][0]

    def call(*tensors: tf.Tensor) -> Any:
        left = iter(tensors)
        batch = [None if leaf is None else next(left) for leaf in leaves]
        with tf.variable_creator_scope(note):
            return step(tf.nest.pack_sequence_as(batch_spec, batch))

    try:
        specs = [leaf for leaf in leaves if leaf is not None]
        with warnings.catch_warnings():  # the trace of the step itself warns of what is wrong
            warnings.simplefilter("ignore")
            tf.function(call, autograph=False).get_concrete_function(*specs)
    except Exception:  # the user's code may raise anything; who builds otherwise finds the reason
        for variable, value in made:
            if not variable.is_initialized():
                known = value() if callable(value) else tf.get_static_value(value)
                if known is not None:
                    variable.assign(known)
        return False
    return True


@contextlib.contextmanager
def nothing_applied(
    optimizers: Iterable[Any],
    applied: dict[int, tuple[Any, list[Any]]] | None = None,
    *,
    traces: bool = False,
) -> Iterator[None]:
    """Makes optimizers apply nothing in a `with` block, also in `tf.function`s of the step.

    Args:
      applied: notes each optimizer with the variables that it was first given, by its id.
      traces: whether the block only traces. Functions for XLA are then called as Python code, too:
        else they would keep a trace that applies nothing.
    """
    noted = {} if applied is None else applied

    def note(optimizer: Any, grads: Any, trainable_variables: Any = None) -> None:
        if trainable_variables is not None and list(grads):
            noted.setdefault(id(optimizer), (optimizer, list(trainable_variables)))

    with contextlib.ExitStack() as stack:
        for optimizer in optimizers:
            stack.enter_context(_attribute(optimizer, "apply", functools.partial(note, optimizer)))
        stack.enter_context(inlined_functions(xla_too=traces))
        yield


@contextlib.contextmanager
def _attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Gives an object another attribute in a `with` block; the user may have set one before."""
    before = vars(owner).get(name)
    object.__setattr__(owner, name, value)
    try:
        yield
    finally:
        if before is None:
            object.__delattr__(owner, name)
        else:
            object.__setattr__(owner, name, before)
