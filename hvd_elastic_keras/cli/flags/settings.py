"""Where the flags of `run` get their values: command line, file, environment, default.

The first of these that has a value for a flag counts. An option that a script may give comes from
the script after the command line (`settings/options.py`). Values from the environment or a file
become words of the command line before any other code looks at them. So they are checked, kept in
the job's journal, and used by `--resume` like typed words.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags

from hvd_elastic_keras.cli.flags.arguments import split_arguments
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.settings import env

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

COMMAND_LINE = "command line"
WHEN_STARTED = "when the job was started"
NONE_BEFORE: Mapping[str, str] = types.MappingProxyType({})
CONFIG = "config"
"""Flag for a file of flags, if its value ends with `SUFFIX`, or a reference configuration."""
SUFFIX = ".toml"
ONE_VALUE = f"{CONFIG}."
"""Prefix of the name of a single value of the model's reference configuration."""


@dataclasses.dataclass(frozen=True)
class Value:
    """The value of a flag in one source.

    Attributes:
      text: the value as on the command line.
      source: name of the source, for people.
      name: name of the flag, as this source writes it.
    """

    text: str
    source: str
    name: str


@dataclasses.dataclass(frozen=True)
class Settings:
    """A command line with the values of all sources.

    Attributes:
      words: flags, then the script with its arguments.
      sources: by flag, the source of its value; only flags that have a value.
      of_start: flags that keep the value of the earlier start of the job (`--resume`).
    """

    words: list[str]
    sources: Mapping[str, str]
    of_start: frozenset[str] = frozenset()

    def lines(self, reference: Mapping[str, Any], reference_name: str) -> Iterator[str]:
        """Yields each value that differs from its default, with its source; for `--dry_run`.

        Call it after the flags are parsed.

        Args:
          reference: values of the model's reference configuration, with single values replaced.
          reference_name: name of that configuration.
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


def resolved(words: Sequence[str], before: Mapping[str, str] = NONE_BEFORE) -> Settings:
    """Returns the command line with the values that a file and the environment add.

    Args:
      words: the command line without the program.
      before: `Settings.sources` of the earlier start, whose words `--resume` has put there.

    Raises:
      ConfigurationError: a source names an unknown flag, or a value that a flag cannot have.
    """
    typed, rest = split_arguments(words)
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
    """Adds the values of a source for flags that no earlier source has set.

    A single value of the reference configuration, such as `config.epochs`, also stands for the flag
    of that name: typed words count before an environment variable in either form.
    """
    taken = {name for flag in (*typed, *before) for name in (flag, flag.removeprefix(ONE_VALUE))}
    return {**before, **{name: value for name, value in found.items() if name not in taken}}


def known_flags() -> list[str]:
    """Returns the names of the flags of this package."""
    return [
        flag.name
        for module, those in flags.FLAGS.flags_by_module_dict().items()
        if module.startswith("hvd_elastic_keras") or module == "__main__"
        for flag in those
    ]


def from_environment() -> dict[str, Value]:
    """Returns the values in environment variables, by flag.

    Raises:
      ConfigurationError: a variable has the prefix but belongs to no flag.
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
    """Returns the values in a file, by flag.

    Raises:
      ConfigurationError: the file cannot be read, or names something that is no flag.
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
    """Returns a value of a file in the form of the command line."""
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
    """Raises `ConfigurationError`, which names the source, if a flag cannot have a value."""
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
    """Returns the flag that a name sets: `tls` for `tls` and for `notls`."""
    positive = name.removeprefix("no")
    return positive if name not in flags.FLAGS and positive in flags.FLAGS else name


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"Did you mean {close[0]}? " if close else ""


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def parse_flags(arguments: list[str]) -> list[str]:
    """Parses absl flags; a wrong flag ends the program with one clear line and exit code 2."""
    app.define_help_flags()
    try:
        return list(flags.FLAGS(arguments))
    except SystemExit:
        sys.exit(0)  # --help; absl would exit with 1
    except flags.Error as error:
        first_line = str(error).splitlines()[0].rstrip(".").replace("mean: ", "mean ")
        if "'config." in first_line:
            first_line += " (this model has no reference configuration: there is no configs/)"
        print(f"error: {first_line}. See --help.".replace(" ?.", "?"), file=sys.stderr)
        sys.exit(2)
    except AttributeError as error:
        # ml_collections sets values in the user's configuration; its error lists the known names.
        name, *hint = str(error).strip("'\"").replace("\\n", "\n").splitlines()
        words = [f"the configuration has no value {name.strip(chr(39))!r}", *hint]
        print(f"error: {'. '.join(words)}. See --help.", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        # Parsing runs the user's configuration file, which may raise anything.
        print(
            f"error: the configuration cannot be used: {type(error).__name__}: {error}",
            file=sys.stderr,
        )
        sys.exit(2)
