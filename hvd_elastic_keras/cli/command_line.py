"""A command line that answers mistakes with one line, and the first screen of `run --help`."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Mapping
from types import ModuleType
from typing import NoReturn

from absl import flags


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """Ends the program with exit code 2."""
        print(f"error: {message}. See --help.", file=sys.stderr)
        sys.exit(2)


def parser_of(module: str, documentation: str, more: str = "") -> OneLineParser:
    """Returns a parser without arguments, whose help text is the documentation of a module.

    Args:
      module: name of the module, for `python -m`.
      documentation: a head, an empty line, and examples.
      more: text to print after the examples.
    """
    head, _, examples = documentation.partition("\n\n")
    return OneLineParser(
        prog=f"python -m {module}",
        description=head.partition(" (")[0] + ".",
        epilog=f"examples:\n{examples}{more}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


ALL = "all"
USAGE = """usage: python -m hvd_elastic_keras.run [flags] [script.py [its own flags]]

  python -m hvd_elastic_keras.run --model=resnet50          # a model of the zoo
  python -m hvd_elastic_keras.run --model=my_model.py       # your own module
  python -m hvd_elastic_keras.run --num_workers=4 train.py  # a script as it is
  python -m hvd_elastic_keras.run -m package.train          # a module as it is
"""
GROUPS: Mapping[str, tuple[str, ...]] = {
    "What to train": ("model", "module", "config", "epochs", "job", "checkpoint", "seed"),
    "Workers": ("num_workers", "min_workers", "max_workers", "hosts", "ssh_command", "join"),
    "Batch": ("global_batch_size", "micro_batch_size", "batch", "deterministic"),
    "Checkpoints": ("job_dir", "resume", "checkpoint_every_n_epochs", "init_from"),
    "Before and while it runs": ("dry_run", "explain_step", "all_output", "dashboard", "audit"),
}
"""Headings, and the flags below each. All other flags are in `--help=all` alone."""
MOST_COLUMNS = 100


def first_screen(module: ModuleType) -> str:
    """Returns the usage, examples and the flags that most people need.

    Args:
      module: has all flags as its key flags.
    """
    columns = min(MOST_COLUMNS, shutil.get_terminal_size().columns)
    width = 4 + max(len(name) for names in GROUPS.values() for name in names)
    parts = [USAGE]
    for heading, names in GROUPS.items():
        lines = [heading]
        for name in names:
            text = textwrap.wrap(_sentence(flags.FLAGS[name].help), max(30, columns - width - 4))
            first, *others = text
            lines.append(f"  {'--' + name:{width}}{first}")
            lines += [" " * (width + 2) + other for other in others]
        parts.append("\n".join(lines) + "\n")
    number = len(flags.FLAGS.get_key_flags_for_module(module))
    return "\n".join(
        [*parts, f"All {number} flags, with their defaults: --help={ALL}, or docs/reference.md."]
    )


def _sentence(text: str) -> str:
    """Returns the first sentence of a flag's text."""
    end = text.find(". ")
    return text.rstrip(".") if end < 0 else text[:end]
