"""Where the flags of `run` get their values: command line, file, environment, default.

The first of these that has a value for a flag counts; for an option that a script may give, the
script comes after the command line (`common/options.py`). What comes from the environment or a file
becomes words of the command line before anything looks at them. So it is checked, kept in the
job's journal, and used by `--resume` like what somebody has typed.

| source | `--num_workers=4` there |
|---|---|
| a file of `--config=FILE.toml` | `num_workers = 4` |
| environment | `HVD_ELASTIC_RUN_NUM_WORKERS=4` |
"""

from __future__ import annotations

import dataclasses
import difflib
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from hvd_elastic_keras.cli.find_model import split_arguments
from hvd_elastic_keras.common import env
from hvd_elastic_keras.common.errors import ConfigurationError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

COMMAND_LINE = "command line"
WHEN_STARTED = "when the job was started"
NONE_BEFORE: Mapping[str, str] = types.MappingProxyType({})
CONFIG = "config"
"""Names a file of flags, if that ends with `SUFFIX`; else the model's reference configuration."""
SUFFIX = ".toml"
ONE_VALUE = f"{CONFIG}."
"""Begins the name of a single value of the model's reference configuration."""


@dataclasses.dataclass(frozen=True)
class Value:
    """What a source says of a flag.

    Attributes:
      text: as on the command line.
      source: for people.
      name: of the flag, as that source writes it.
    """

    text: str
    source: str
    name: str


@dataclasses.dataclass(frozen=True)
class Settings:
    """A command line with all that its sources say.

    Attributes:
      words: flags, then the script with its arguments.
      sources: by flag, where its value comes from; of those that have one.
      of_start: flags whose values are those with which the job was started before (`--resume`).
    """

    words: list[str]
    sources: Mapping[str, str]
    of_start: frozenset[str] = frozenset()

    def lines(self, reference: Mapping[str, Any], reference_name: str) -> Iterator[str]:
        """Each value that is no default, with its source; for `--dry_run`.

        To be called when the flags are parsed.

        Args:
          reference: the values of the model's reference configuration, single ones replaced.
          reference_name: of that configuration.
        """
        for name, source in sorted(self.sources.items()):
            if name in (CONFIG, "dry_run"):
                continue
            if name in self.of_start:
                source = f"{source}, {WHEN_STARTED}"  # noqa: PLW2901 - only its words
            if name.startswith(ONE_VALUE):
                yield f"set: {name}={_shown(reference.get(name[len(ONE_VALUE) :]))} ({source})"
            elif flags.FLAGS[name].value != flags.FLAGS[name].default:
                yield f"set: {name}={_shown(flags.FLAGS[name].value)} ({source})"
        for name in sorted((reference.keys() & set(known_flags())) - self.sources.keys()):
            if f"{ONE_VALUE}{name}" not in self.sources:
                yield f"set: {name}={_shown(reference[name])} ({reference_name})"


def resolved(
    words: Sequence[str],
    takes_value: Callable[[str], bool],
    before: Mapping[str, str] = NONE_BEFORE,
) -> Settings:
    """The command line with what a file and the environment add.

    Args:
      words: the command line without the program.
      takes_value: whether the argument after the flag of a name is its value.
      before: `Settings.sources` of the start before, whose words `--resume` has put there.

    Raises:
      ConfigurationError: a source names a flag that there is not, or a value that it cannot have.
    """
    typed, rest = split_arguments(list(words), takes_value)
    own = [(flag_of(name), used) for name, value, used in typed if not _is_file(name, value)]
    paths = [value for name, value, _ in typed if _is_file(name, value)]
    variables = from_environment()
    if CONFIG in variables and _is_file(CONFIG, variables[CONFIG].text):
        path = variables.pop(CONFIG).text
        paths = paths or [path]
    names = {name for name, _ in own}
    more = _of_first({}, from_file(Path(paths[-1])) if paths else {}, names)
    more = _of_first(more, variables, names)
    for name, value in more.items():
        _check(name, value)
    sources = {name: value.source for name, value in more.items()}
    return Settings(
        [
            *(f"--{name}={value.text}" for name, value in more.items()),
            *(word for _, used in own for word in used),
            *rest,
        ],
        {**sources, **{name: before.get(name, COMMAND_LINE) for name in names}},
        frozenset(names & before.keys()),
    )


def _of_first(
    before: Mapping[str, Value], found: Mapping[str, Value], typed: Iterable[str]
) -> dict[str, Value]:
    """Adds what a source says of flags of which no source before it says anything.

    A single value of the reference configuration, such as `config.epochs`, stands for the flag of
    that name, too: what is typed counts before an environment variable either way.
    """
    taken = {name for flag in (*typed, *before) for name in (flag, flag.removeprefix(ONE_VALUE))}
    return {**before, **{name: value for name, value in found.items() if name not in taken}}


def known_flags() -> list[str]:
    """The flags of this package."""
    return [
        flag.name
        for module, those in flags.FLAGS.flags_by_module_dict().items()
        if module.startswith("hvd_elastic_keras") or module == "__main__"
        for flag in those
    ]


def from_environment() -> dict[str, Value]:
    """What variables say, by flag.

    Raises:
      ConfigurationError: one has the prefix and belongs to no flag.
    """
    found = {}
    known = sorted(known_flags())
    for variable, text in sorted(env.variables_beginning(env.RUN_PREFIX).items()):
        name = variable.removeprefix(env.RUN_PREFIX).lower()
        if name not in known or variable != variable.upper():
            names = [f"{env.RUN_PREFIX}{flag.upper()}" for flag in known]
            raise ConfigurationError(
                f"The environment variable {variable} is set, but run has no flag --{name}. "
                f"{_suggestion(variable, names)}Unset it."
            )
        found[name] = Value(text, variable, variable)
    return found


def from_file(path: Path) -> dict[str, Value]:
    """What a file says, by flag.

    Raises:
      ConfigurationError: it cannot be read, or names something that is no flag.
    """
    try:
        content = tomllib.loads(path.read_text())
    except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(
            f"--config={path} cannot be read: {error}. Expected a file with a line per flag, such "
            "as num_workers = 4."
        ) from error
    known = known_flags()
    for name in content:
        if name not in known and not name.startswith(ONE_VALUE):
            raise ConfigurationError(
                f"{path} has {name}, which is no flag of run. {_suggestion(name, known)}"
                "Correct it, or leave it out."
            )
    return {
        name: Value(_text(name, value, path), str(path), f"{name} of {path}")
        for name, value in content.items()
    }


def _text(name: str, value: Any, path: Path) -> str:
    """A value of a file as on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ",".join(value)
    if not isinstance(value, str | int | float) or _is_file(name, str(value)):
        raise ConfigurationError(
            f"{path} has {name} = {value!r}, expected a text, a number, true, false, or a list of "
            "texts, and no other such file."
        )
    return str(value)


def _check(name: str, value: Value) -> None:
    """Raises `ConfigurationError` if a flag cannot have a value, with its source."""
    if name not in flags.FLAGS or name == CONFIG:
        return
    try:
        flags.FLAGS[name].parser.parse(value.text)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{value.name}={value.text} was given, which the flag --{name} cannot be: {error}."
        ) from error


def _is_file(name: str, value: str) -> bool:
    return name == CONFIG and value.endswith(SUFFIX)


def flag_of(name: str) -> str:
    """Of --tls and of --notls it is tls."""
    positive = name.removeprefix("no")
    return positive if name not in flags.FLAGS and positive in flags.FLAGS else name


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"Did you mean {close[0]}? " if close else ""


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
