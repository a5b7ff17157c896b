"""Notes what a `train_step` asks its optimizers to apply."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hvd_elastic_keras.errors import ConfigurationError


class ApplyRecorder:
    """Notes what optimizers are asked to apply, and applies nothing."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self._optimizers = optimizers
        self.calls: list[tuple[Any, list[Any], list[Any]]] = []

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
                raise ConfigurationError(
                    "The model's train_step applies optimizers more than once, which cannot be one "
                    "atomic step: the second application would need the weights after the first. "
                    "Apply all gradients in one call, or write the loop yourself with elastic.run."
                )
            variables = trainable_variables or optimizer._trainable_variables
            self.calls.append((optimizer, list(gradients), list(variables)))

        return record
