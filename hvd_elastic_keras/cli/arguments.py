"""Parses the arguments of a command line of absl flags."""

from __future__ import annotations

import sys

from absl import app, flags


def parse_flags(arguments: list[str]) -> list[str]:
    """Parses absl flags; a wrong flag ends the program with one clear line and exit code 2."""
    app.define_help_flags()
    try:
        return list(flags.FLAGS(arguments))
    except SystemExit:
        sys.exit(0)  # --help; absl would exit with 1
    except flags.Error as error:
        first_line = str(error).splitlines()[0].rstrip(".")
        if "'config." in first_line:
            first_line += " (this model has no reference configuration: there is no configs/)"
        print(f"error: {first_line}. See --help.", file=sys.stderr)
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
