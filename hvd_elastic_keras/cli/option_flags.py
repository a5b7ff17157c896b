"""Defines flags for the options of configurations, such as `RunOptions`.

`RunOptions` reach scripts, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from absl import flags

from hvd_elastic_keras.cli import settings
from hvd_elastic_keras.common import env
from hvd_elastic_keras.common.options import JobOptions, Option, RunOptions, definitions, given

Flag: TypeAlias = flags.FlagHolder[Any]


def defined(config: type, *, may_be_unset: bool) -> dict[str, Flag]:
    """Defines a flag for each option of a configuration; returns the flags by name.

    Args:
      may_be_unset: whether a reference configuration decides if the flag is not given.
    """
    defaults = config()
    return {
        name: _defined(name, *definition, getattr(defaults, name), may_be_unset)
        for name, definition in definitions(config).items()
    }


def _defined(name: str, kind: type, option: Option, default: Any, may_be_unset: bool) -> Flag:
    text, value = option.help, default
    if may_be_unset or option.default:
        words = default_in_words(option, default, may_be_unset=may_be_unset)
        text, value = f"{text} Default: {words}.", None
    if option.choices:
        return flags.DEFINE_enum(name, value, option.choices, text)
    if kind is bool:
        return flags.DEFINE_boolean(name, value, text)
    if kind is str:
        return flags.DEFINE_string(name, value, text)
    define = flags.DEFINE_integer if kind is int else flags.DEFINE_float
    return define(name, value, text, lower_bound=option.least)


def default_in_words(option: Option, default: Any, *, may_be_unset: bool) -> str:
    """Returns the default of an option in words; see `defined`.

    >>> default_in_words(Option("Write a ledger."), False, may_be_unset=True)
    "the configuration's, else off"
    >>> default_in_words(Option("Wait."), 1800.0, may_be_unset=False)
    '1800'
    """
    if option.default:
        words = option.default
    elif isinstance(default, bool):
        words = "on" if default else "off"
    else:
        words = f"{default:g}" if isinstance(default, float) else str(default)
    return f"the configuration's, else {words}" if may_be_unset else words


FLAGS = defined(RunOptions, may_be_unset=True)


def given_options(config: Mapping[str, Any], sources: Mapping[str, str]) -> JobOptions:
    """Returns the options of the flags; a reference configuration counts where no flag is given.

    Args:
      config: the values of the reference configuration; some need not be options.
      sources: by flag, the source of its value.

    Raises:
      ConfigurationError: an option cannot have the value given.
    """
    values = {name: f.value for name, f in FLAGS.items() if f.value is not None}
    directory = values.get("checkpoint_dir")
    if directory and "://" not in directory:
        values["checkpoint_dir"] = str(Path(directory).resolve())  # workers may run elsewhere
    typed = {n: v for n, v in values.items() if sources.get(n) == settings.COMMAND_LINE}
    others = {n: v for n, v in values.items() if n not in typed}
    before = env.job_options()
    weakest = {**before.otherwise, **before.command_line}
    return JobOptions(typed, {**weakest, **given(config), **others})
