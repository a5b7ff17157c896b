"""Notes what a `train_step` asks its optimizers to apply."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from keras.src.backend.common.stateless_scope import get_stateless_scope, in_stateless_scope

from hvd_elastic_keras.common.errors import ConfigurationError

TWICE = (
    "The model's train_step applies optimizers more than once, which cannot be one atomic step: "
    "the second application would need the weights after the first. Apply all gradients in one "
    "call, or write the loop yourself with elastic.run."
)


class ApplyRecorder:
    """Notes what optimizers are asked to apply, and applies nothing."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self._optimizers = optimizers
        self.calls: list[tuple[Any, list[Any], list[Any]]] = []
        self._after: dict[int, Any] = {}

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
        """Replaces the `apply` of the optimizers for a while."""
        for optimizer in self._optimizers:
            object.__setattr__(optimizer, "apply", self._recorder_of(optimizer))
        try:
            yield
        finally:
            for optimizer in self._optimizers:
                object.__delattr__(optimizer, "apply")

    def _recorder_of(self, optimizer: Any) -> Callable[..., None]:
        def record(gradients: Any, trainable_variables: Any = None) -> None:
            if self.calls:
                raise ConfigurationError(TWICE)
            variables = trainable_variables or optimizer._trainable_variables
            self.calls.append((optimizer, list(gradients), list(variables)))
            if in_stateless_scope():
                for variable in variables:
                    self._after[id(variable)] = tf.identity(variable.value)
                    get_stateless_scope().add_update((variable, self._after[id(variable)]))

        return record
