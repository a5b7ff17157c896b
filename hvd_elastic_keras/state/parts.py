"""The state that a worker needs to go on, as a registry of named parts.

Each part returns and restores its own state: position, logs, callbacks, the user's values. To carry
more, add a part where the registry is made, and raise the version there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.state import json_codec
from hvd_elastic_keras.state.packing import Tree


class Part(Protocol):
    """Something whose state is carried to other workers and to later runs."""

    def state(self) -> Tree:
        """Returns the present state as JSON and bytes. Later changes do not affect the result."""

    def restore(self, state: Tree) -> None:
        """Takes over a result of `state`, maybe from another process."""


def _as_it_is(tree: Tree) -> Tree:
    return tree


@dataclasses.dataclass(frozen=True)
class Attributes:
    """Attributes of an object that hold values of any type that can be sent.

    Attributes:
      owner: the object.
      names: names of the attributes.
    """

    owner: Any
    names: tuple[str, ...]

    def state(self) -> Tree:
        """Returns the values by name."""
        return {name: json_codec.encode(getattr(self.owner, name)) for name in self.names}

    def restore(self, state: Tree) -> None:
        """Sets the values."""
        for name, value in state.items():
            setattr(self.owner, name, json_codec.decode(value))


@dataclasses.dataclass(frozen=True)
class Attribute:
    """An attribute of an object, with its own conversion to JSON and bytes.

    Attributes:
      owner: the object.
      name: name of the attribute.
      to_tree, from_tree: convert the value to JSON and bytes, and back. By default the value
        consists of JSON and bytes already.
    """

    owner: Any
    name: str
    to_tree: Callable[[Any], Tree] = _as_it_is
    from_tree: Callable[[Tree], Any] = _as_it_is

    def state(self) -> Tree:
        """Returns the converted value."""
        return self.to_tree(getattr(self.owner, self.name))

    def restore(self, state: Tree) -> None:
        """Sets the value."""
        setattr(self.owner, self.name, self.from_tree(state))


def states_of(parts: Mapping[str, Part]) -> dict[str, Tree]:
    """Returns the states of all parts by name."""
    return {name: part.state() for name, part in parts.items()}


def restore(parts: Mapping[str, Part], states: Mapping[str, Tree]) -> None:
    """Lets all parts take over their states."""
    for name, part in parts.items():
        part.restore(states[name])


def restore_all_or_none(parts: Mapping[str, Part], states: Mapping[str, Tree]) -> None:
    """As `restore`, but if one part cannot take over its state, all parts keep what they have."""
    before = states_of(parts)
    try:
        restore(parts, states)
    except Exception:
        restore(parts, before)
        raise


def check_version(states: Mapping[str, Any], expected: int, checkpoint: Path | str | None) -> None:
    """Refuses states of another version.

    Args:
      checkpoint: where they were read from; None if another worker has sent them.

    Raises:
      ConfigurationError: the states were made by another release.
    """
    found = states.get("version")
    if found == expected:
        return
    if checkpoint is not None:
        raise ConfigurationError(
            f"The checkpoint {checkpoint} holds a state of version {found}, expected {expected}. "
            "Use the release that wrote it, or another job_dir."
        )
    raise ConfigurationError(
        f"Rank 0 has sent a state of version {found}, expected {expected}. Use the same release of "
        "hvd_elastic_keras on all hosts."
    )
