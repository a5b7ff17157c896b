"""Splits the command line of `run` into its flags and the script with its arguments."""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags

USUAL = {"h": "help", "np": "num_workers", "H": "hosts", "m": "module"}
"""Flags by names that `horovodrun` and many other programs have."""


def split_arguments(words: Sequence[str]) -> tuple[list[tuple[str, str, list[str]]], list[str]]:
    """Splits words into flags, as (name, value, words), and the rest.

    The rest begins at the first word that is no flag, or at "--".
    """
    found = []
    position = 0
    while position < len(words) and words[position].startswith("-") and words[position] != "--":
        name, equals, value = words[position].lstrip("-").partition("=")
        used = 1
        if not equals and _takes_value(name) and position + 1 < len(words):
            value, used = words[position + 1], 2
        found.append((name, value, list(words[position : position + used])))
        position += used
    return found, list(words[position:])


def _takes_value(name: str) -> bool:
    """Returns whether the argument after the flag `--name` is its value."""
    name = USUAL.get(name, name)
    if name.startswith("config."):
        return True
    return name in flags.FLAGS and not flags.FLAGS[name].boolean


def with_own_names(words: Sequence[str]) -> list[str]:
    """Replaces names of flags that people know from other command lines, before a script.

    >>> with_own_names(["-np=4", "train.py", "-np=2"])
    ['--num_workers=4', 'train.py', '-np=2']
    """
    typed, rest = split_arguments(words)
    own: list[str] = []
    for name, _, used in typed:
        first, *value = used
        own += [f"--{USUAL[name]}{first.lstrip('-')[len(name) :]}" if name in USUAL else first]
        own += value
    return [*own, *rest]
