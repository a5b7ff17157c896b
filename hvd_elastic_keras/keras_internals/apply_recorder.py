"""Notes what a `train_step` asks its optimizers to apply."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from keras.src.backend.common.stateless_scope import get_stateless_scope, in_stateless_scope

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.keras_internals.inlined_functions import inlined_functions

TWICE = (
    "The model's train_step applies optimizers more than once, which cannot be one atomic step: "
    "the second application would need the weights after the first. Apply all gradients in one "
    "call, or write the loop yourself with elastic.run."
)
WITHIN = (
    "The model's train_step applies its optimizer within tf.cond, tf.while_loop or the like, so "
    "that only some steps would take effect, expected a train_step that applies it in each step. "
    "To add up gradients over several steps, give the optimizer gradient_accumulation_steps=N; to "
    "leave out steps that are not finite, say on_nonfinite='skip'; or write the loop yourself with "
    "elastic.run."
)


class ApplyRecorder:
    """Notes what optimizers are asked to apply, and applies nothing."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self._optimizers = optimizers
        self.calls: list[tuple[Any, list[Any], list[Any]]] = []
        self._after: dict[int, Any] = {}
        self._graph = tf.compat.v1.get_default_graph()

    def stands_for(self, variable: Any, value: Any) -> bool:
        """Whether a value is what a weight is read as after `apply`; it is the value before."""
        return self._after.get(id(variable)) is value

    def reads_after(self, results: Sequence[Any]) -> bool:
        """Whether symbolic tensors depend on weights that were read after `apply`.

        Of those that are computed eagerly nobody knows.
        """
        wanted = set() if tf.executing_eagerly() else {id(v) for v in self._after.values()}
        seen: set[int] = set()
        todo = [t for t in results if isinstance(t, tf.Tensor)] if wanted else []
        while todo:
            tensor = todo.pop()
            if id(tensor) in wanted:
                return True
            if id(tensor.op) not in seen:
                seen.add(id(tensor.op))
                todo += tensor.op.inputs
        return False

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Replaces the `apply` of the optimizers for a while.

        What a `tf.function` gives them can be used outside of it only if it is a part of the step.
        """
        for optimizer in self._optimizers:
            object.__setattr__(optimizer, "apply", self._recorder_of(optimizer))
        try:
            with inlined_functions():
                yield
        finally:
            for optimizer in self._optimizers:
                object.__delattr__(optimizer, "apply")

    def _recorder_of(self, optimizer: Any) -> Callable[..., None]:
        def record(gradients: Any, trainable_variables: Any = None) -> None:
            if tf.compat.v1.get_default_graph() is not self._graph and not tf.executing_eagerly():
                raise ConfigurationError(WITHIN)
            if self.calls:
                raise ConfigurationError(TWICE)
            variables = trainable_variables or optimizer._trainable_variables
            self.calls.append((optimizer, list(gradients), list(variables)))
            if in_stateless_scope():
                for variable in variables:
                    self._after[id(variable)] = tf.identity(variable.value)
                    get_stateless_scope().add_update((variable, self._after[id(variable)]))

        return record
