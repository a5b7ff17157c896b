"""Values of the user that are committed with every step: `ElasticCallback.state`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.state import json_codec

RESET_CALLBACKS = "_reset_callbacks"
"""Name of the one attribute of a `UserState` that is not a value."""


class UserState:
    """Values of the user. Each attribute is committed with every step and given to late joiners.

    A step that fails and is taken again changes an attribute only once, also if `train_step`
    itself changes it (with `run_eagerly`).

    A value may be a number, a text, bytes, None, a time, a NumPy array, a frozen dataclass, or a
    list, tuple, set or dict of these.

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
        """Adds functions to call on every worker whenever the world size may have changed.

        As in Horovod's `State`, they are called after the re-initialisation and before newcomers
        get the state.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Calls the registered functions."""
        for callback in self._reset_callbacks:
            callback()

    @contextlib.contextmanager
    def atomic(self) -> Iterator[None]:
        """Takes back a step's changes to the values if the step fails, before it is taken again."""
        values = UserValues(self)
        before = values.state()
        try:
            yield
        except BaseException:
            values.remove_others(before)
            values.restore(before)
            raise


class UserValues:
    """The values of a `UserState`, as a part of a state.

    A class of its own: in `UserState`, names such as `state` and `restore` belong to the user.
    """

    def __init__(self, user: UserState) -> None:
        self._user = user

    def state(self) -> dict[str, Any]:
        """Returns the values as JSON and bytes, which share nothing mutable with the values."""
        return {name: _encoded(name, value) for name, value in self._values().items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over a result of `state`."""
        for name, value in state.items():
            object.__setattr__(self._user, name, json_codec.decode(value))

    def remove_others(self, names: Container[str]) -> None:
        """Removes all values but those with these names."""
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
