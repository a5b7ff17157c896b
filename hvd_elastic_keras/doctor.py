"""Checks whether jobs can run on this host (`python -m hvd_elastic_keras.doctor --help`).

python -m hvd_elastic_keras.doctor
python -m hvd_elastic_keras.doctor --json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from hvd_elastic_keras.cli.command_line import parser_of

MORE = """
Each line begins with ok, warning (a job runs) or problem (none does), and says what to do.
TensorFlow, Keras and Horovod are imported, and two processes train together for a moment: that
takes half a minute. The exit code is 1 if there is a problem, else 0.
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = parser_of("hvd_elastic_keras.doctor", __doc__ or "", MORE)
    top.add_argument("--json", action="store_true", help="print a list of JSON, for programs")
    return top


def main(arguments: Sequence[str] | None = None) -> None:
    """Parses the command line and examines this host."""
    sys.exit(_examine(parser().parse_args(arguments)))


def _examine(given: argparse.Namespace) -> int:
    try:
        from hvd_elastic_keras.cli.checks import checkup
    except ImportError as error:
        # The package itself needs some others, without which nothing of it can be asked.
        missing = error.name or str(error)
        print(
            f"problem  packages        {missing} cannot be imported: {error}; expected all that "
            f"setup.py names. Run scripts/setup, or {sys.executable} -m pip install {missing}"
        )
        return 1
    return checkup.examine(as_json=given.json)


if __name__ == "__main__":
    main()
