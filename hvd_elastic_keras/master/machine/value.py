"""The values that make up the master's state: each field is decided or only observed. Pure.

Workers and people rely on a decided field, so the journal holds it, and another master goes on from
it. An observed field (a step, the time of a heartbeat, a request at the entrance) is not in the
journal: the workers tell it again.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, TypeVar, cast

import msgspec

T = TypeVar("T")
_OBSERVED = "observed"
Observed = Annotated[T, _OBSERVED]
"""The type of a field that is only observed. Such a field needs a default."""


class Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of the state and its parts. Its type is checked on reading."""


_COMPOSED = (Value, dict, tuple)


@functools.cache
def _decided_fields(kind: type[Value]) -> tuple[str, ...]:
    fields = msgspec.structs.fields(kind)
    return tuple(f.name for f in fields if _OBSERVED not in getattr(f.type, "__metadata__", ()))


def decided(value: T) -> T:
    """Returns a value, and all values in it, with the defaults of all observed fields."""
    whole: Any = value  # of any type: mypy cannot narrow a type variable
    if isinstance(whole, Value):
        kept = {name: getattr(whole, name) for name in _decided_fields(type(whole))}
        # A call for each plain field of each worker would take most of the time.
        kept |= {n: decided(part) for n, part in kept.items() if isinstance(part, _COMPOSED)}
        whole = type(whole)(**kept)
    elif isinstance(whole, dict):
        whole = {key: decided(part) for key, part in whole.items()}
    elif isinstance(whole, tuple):
        whole = tuple(map(decided, whole))
    return cast("T", whole)


def decided_alike(one: object, other: object) -> bool:
    """Whether two values differ at most in what is observed: their `decided` are equal.

    Most events are heartbeats, after which nearly all parts of the state are the same objects.
    """
    if one is other:
        return True
    if isinstance(one, Value) and type(one) is type(other):
        names = _decided_fields(type(one))
        return all(decided_alike(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, dict) and isinstance(other, dict):
        before = other.get
        changed = [(part, before(key)) for key, part in one.items() if part is not before(key)]
        return len(one) == len(other) and all(decided_alike(*pair) for pair in changed)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(decided_alike, one, other))
    return one == other
