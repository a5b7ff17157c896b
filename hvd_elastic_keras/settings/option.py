"""The definition of one option: type, help text, check and row of the reference come from it."""

from __future__ import annotations

import dataclasses
import functools
import typing
from typing import Any

from hvd_elastic_keras.common.errors import (
    require,
    require_bool,
    require_number,
    require_whole_number,
)

CHECKS_OF_TYPES = {bool: require_bool, int: require_whole_number, float: require_number}


@dataclasses.dataclass(frozen=True)
class Option:
    """The definition of an option; it follows the type of a field (`typing.Annotated`).

    Attributes:
      help: one or more sentences, for `--help` and `docs/reference.md`.
      choices: the allowed values of a text; empty: any text.
      least: the smallest allowed number.
      default: the default in words, if the value itself says little.
      more: additional text for `docs/reference.md` alone, as Markdown.
      may_be_auto: whether the flag also takes `AUTO`, which the program replaces by a number.
    """

    help: str
    choices: tuple[str, ...] = ()
    least: float | None = None
    default: str = ""
    more: str = ""
    may_be_auto: bool = False

    @property
    def expected(self) -> str:
        """The end of a message about a wrong value."""
        if self.choices:
            *others, last = map(repr, self.choices)
            return f"that is {', '.join(others)} or {last}"
        return f">= {self.least}"

    def check(self, name: str, value: Any) -> None:
        """Raises `ConfigurationError` for a value that is not allowed."""
        if self.choices:
            require(value in self.choices, name, repr(value), self.expected)
        if self.least is not None:
            require(value >= self.least, name, value, self.expected)


@functools.cache
def definitions(config: type) -> dict[str, tuple[type, Option]]:
    """Returns the type (without None) and the definition of each option of a configuration."""
    found = {}
    for name, hint in typing.get_type_hints(config, include_extras=True).items():
        for note in getattr(hint, "__metadata__", ()):
            if isinstance(note, Option):
                found[name] = (typing.get_args(hint.__origin__) or (hint.__origin__,))[0], note
    return found
