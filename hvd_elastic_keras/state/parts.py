"""The state that a worker needs to go on, as a registry of named parts.

Each part returns and restores its own state: position, logs, callbacks, the user's values. To carry
more, add a part where the registry is made, and raise the version there.

`UserState` holds values of the user that are committed with every step: `ElasticCallback.state`.

`DataIdentity` checks whether two workers, or two runs of a job, read the same data.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hvd_elastic_keras.common.errors import ConfigurationError, DataError
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.input.interfaces import Input
from hvd_elastic_keras.state import json_codec
from hvd_elastic_keras.state.packing import Tree

RESET_CALLBACKS = "_reset_callbacks"
"""Name of the one attribute of a `UserState` that is not a value."""

NAMES = ("training", "validation")
"""Names of the data of the inputs."""
UNITS = {"num_examples": "examples", "batches_per_pass": "batches"}


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


class DataIdentity:
    """First batches and sizes of the data of a training, which have to agree.

    Args:
      inputs: input of the training, and of the validation if there is any.
    """

    def __init__(self, inputs: Sequence[Input]) -> None:
        self._inputs = inputs
        self._fingerprints = [structure.fingerprint(i.first_batch()) for i in inputs]

    def state(self) -> dict[str, Any]:
        """Returns fingerprints and sizes as JSON."""
        sizes = {key: [getattr(i, key) for i in self._inputs] for key in UNITS}
        return {"fingerprints": self._fingerprints, **sizes}

    def restore(self, state: dict[str, Any], checkpoint: Path | str | None) -> None:
        """Checks that the data are the same, and takes over the number of batches per pass.

        Otherwise a worker may know this number only after reading to the end.

        Args:
          checkpoint: where the state was read from; None if another worker has sent it.

        Raises:
          DataError: the state is of other data.
        """
        self._check_batches(state["fingerprints"], checkpoint)
        self._check_sizes(state, checkpoint)
        # After a checkpoint, the validation data may be new, or there may be none any more.
        for source, count in zip(self._inputs, state["batches_per_pass"], strict=False):
            if checkpoint is None:
                source.know_batches_per_pass(count)
            else:
                source.expect_batches_per_pass(count)

    def _check_batches(
        self, expected: list[list[list[Any]]], checkpoint: Path | str | None
    ) -> None:
        if checkpoint is None and len(expected) != len(self._inputs):
            raise DataError(
                "Some workers have validation data and others have none. Every worker runs the "
                "whole script: give all the same data."
            )
        for name, mine, other in zip(NAMES, self._fingerprints, expected, strict=False):
            same = structure.same_fingerprint(mine, other)
            if not same and checkpoint:
                raise DataError(
                    f"The first batch of the {name} data is not the one that {checkpoint} was made "
                    "with: the examples are others, or in another order. Going on would repeat "
                    "some and lose others. Use the same data again, or another job_dir."
                )
            if not same:
                raise DataError(
                    f"The first batch of the {name} data is not the same in all workers, so that "
                    "some examples would be used twice and others never. Every worker runs the "
                    "whole script: seed all that is random before the data are made, for example "
                    "with keras.utils.set_random_seed(1) or shuffle(n, seed=1)."
                )

    def _check_sizes(self, state: dict[str, Any], checkpoint: Path | str | None) -> None:
        for key, unit in UNITS.items():
            for name, source, other in zip(NAMES, self._inputs, state[key], strict=False):
                mine = getattr(source, key)
                told = not source.ends_unannounced and None not in (mine, other)
                if told and mine != other and checkpoint:
                    raise DataError(
                        f"The {name} data have {mine} {unit}, but had {other} when {checkpoint} "
                        "was made. Going on would repeat examples or lose some. Use the same data "
                        "again, or another job_dir."
                    )
                if told and mine != other:
                    raise DataError(
                        f"The {name} data have {mine} {unit} in this worker, but {other} in "
                        "others. Every worker runs the whole script: give all the same data."
                    )
