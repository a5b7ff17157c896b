"""Values of the user's that follow every commit: `ElasticCallback.state`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.state import json_codec

RESET_CALLBACKS = "_reset_callbacks"
"""The one attribute of a `UserState` that is no value."""


class UserState:
    """Any attribute set on it is committed with every step and given to late joiners.

    A step that fails and is taken again changes it once, also if `train_step` does so itself
    (with `run_eagerly`).

    Numbers, texts, bytes, None, times, NumPy arrays, frozen dataclasses, and lists, tuples, sets
    and dicts of these.

        callback = ElasticCallback()
        callback.state.best_batch = 0

    Raises:
      ConfigurationError: a value of another type is set.
    """

    _reset_callbacks: list[Callable[[], None]]

    def __init__(self, **values: Any) -> None:
        object.__setattr__(self, RESET_CALLBACKS, [])
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

    @contextlib.contextmanager
    def atomic(self) -> Iterator[None]:
        """Takes back what a step did to the values if it fails, before it is taken again."""
        values = UserValues(self)
        before = values.state()
        try:
            yield
        except BaseException:
            values.remove_others(before)
            values.restore(before)
            raise


class UserValues:
    """The values of a `UserState`, as a part of a state. Its own names are the user's."""

    def __init__(self, user: UserState) -> None:
        self._user = user

    def state(self) -> dict[str, Any]:
        """The values in terms of JSON and bytes, which share nothing that can change with them."""
        return {name: _encoded(name, value) for name, value in self._values().items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what `state` has given."""
        for name, value in state.items():
            object.__setattr__(self._user, name, json_codec.decode(value))

    def remove_others(self, names: Container[str]) -> None:
        """Removes values of other names."""
        for name in self._values():
            if name not in names:
                delattr(self._user, name)

    def _values(self) -> dict[str, Any]:
        return {name: v for name, v in vars(self._user).items() if name != RESET_CALLBACKS}


def _encoded(name: str, value: Any) -> Any:
    try:
        return json_codec.encode(value)
    except json_codec.NotEncodableError as error:
        raise ConfigurationError(
            f"state.{name} was set to a {type(value).__name__}, expected something that can be "
            "sent to another worker: a number, a text, bytes, None, a time, a NumPy array, a "
            "frozen dataclass, or a list, tuple, set or dict of these."
        ) from error
