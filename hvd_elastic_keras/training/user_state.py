"""Values of the user's that follow every commit: `ElasticCallback.state`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hvd_elastic_keras.errors import ConfigurationError
from hvd_elastic_keras.training import codec


class UserState:
    """Any attribute set on it is committed with every step and given to late joiners.

    A step that fails and is taken again changes it once, also if `train_step` does so itself
    (with `run_eagerly`).

    Numbers, texts, None, NumPy arrays, and lists, tuples and dicts of these.

        callback = ElasticCallback()
        callback.state.best_batch = 0

    Raises:
      ConfigurationError: a value of another type is set.
    """

    _reset_callbacks: list[Callable[[], None]]

    def __init__(self, **values: Any) -> None:
        object.__setattr__(self, "_reset_callbacks", [])
        for name, value in values.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        _encoded(name, value)
        object.__setattr__(self, name, value)

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Has functions called, on every worker, whenever the world size may have changed.

        As in Horovod's `State`: after the re-initialisation, before newcomers get the state.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Calls the registered functions."""
        for callback in self._reset_callbacks:
            callback()

    def to_json(self) -> dict[str, Any]:
        """The values in terms of JSON."""
        return {name: _encoded(name, value) for name, value in self._values().items()}

    def from_json(self, content: dict[str, Any]) -> None:
        """Takes over what `to_json` made."""
        for name, value in content.items():
            object.__setattr__(self, name, codec.from_json(value))

    @contextlib.contextmanager
    def atomic(self) -> Iterator[None]:
        """Takes back what a step did to the values if it fails, before it is taken again."""
        before = self.to_json()
        try:
            yield
        except BaseException:
            self.from_json(before)
            raise

    def _values(self) -> dict[str, Any]:
        return {name: v for name, v in vars(self).items() if name != "_reset_callbacks"}


def _encoded(name: str, value: Any) -> Any:
    try:
        return codec.to_json(value)
    except codec.NotEncodableError as error:
        raise ConfigurationError(
            f"state.{name} was set to a {type(value).__name__}, expected something that can be "
            "sent to another worker: a number, a text, None, a NumPy array, or a list, tuple or "
            "dict (with text keys) of these."
        ) from error
