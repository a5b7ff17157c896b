"""A command line that answers mistakes with one clear line, as all commands of this package do."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn


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
