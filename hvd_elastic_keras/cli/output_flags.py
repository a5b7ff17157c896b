"""The flags that set how much output is shown."""

from __future__ import annotations

from absl import flags

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.observe.console import Verbosity

ALL_OUTPUT = flags.DEFINE_boolean(
    "all_output",
    False,
    "Show what all workers print, not only rank 0. Each worker's output is also in a file of its "
    "own, --job_dir/logs/<worker>.log.",
)
QUIET = flags.DEFINE_boolean(
    "quiet",
    False,
    "Show nothing but warnings, errors, changes of membership, and how the job has ended.",
)
VERBOSE = flags.DEFINE_boolean(
    "verbose",
    False,
    "Show what all workers print, as --all_output does, and lines of the progress also on a "
    "terminal, where it is drawn.",
)


def verbosity() -> Verbosity:
    """Returns how much output is shown, from flags.

    Raises:
      ConfigurationError: flags ask for more and for less output at the same time.
    """
    if QUIET.value and (VERBOSE.value or ALL_OUTPUT.value):
        other = "--verbose" if VERBOSE.value else "--all_output"
        raise ConfigurationError(f"--quiet was given together with {other}. Leave one of them out.")
    if QUIET.value:
        return Verbosity.QUIET
    return Verbosity.VERBOSE if VERBOSE.value else Verbosity.NORMAL
