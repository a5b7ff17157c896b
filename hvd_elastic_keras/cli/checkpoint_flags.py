"""The flags of `run` that say when checkpoints are written, and how many are kept."""

from __future__ import annotations

from pathlib import Path

from absl import flags

from hvd_elastic_keras.common.options import KEEP_CHECKPOINTS

EVERY_N_EPOCHS = flags.DEFINE_integer(
    "checkpoint_every_n_epochs",
    None,
    "Write a checkpoint after every so many epochs; 0: never. Of this and the two below, whichever "
    "is due first; also for scripts. Default: the configuration's, else 1.",
    lower_bound=0,
)
EVERY_N_STEPS = flags.DEFINE_integer(
    "checkpoint_every_n_steps",
    None,
    "Write a checkpoint after every so many steps (commits in a loop of your own), in the "
    "background. 1: the next begins when the last one is written. Default: the configuration's, "
    "else 0, which is never.",
    lower_bound=0,
)
EVERY_MINUTES = flags.DEFINE_float(
    "checkpoint_every_minutes",
    None,
    "Write a checkpoint so many minutes after the last one. Default: the configuration's, else 0, "
    "which is never.",
    lower_bound=0.0,
)
KEEP = flags.DEFINE_integer(
    "keep_checkpoints",
    None,
    f"Checkpoints that are kept. Default: the configuration's, else {KEEP_CHECKPOINTS}.",
    lower_bound=1,
)
DIRECTORY = flags.DEFINE_string(
    "checkpoint_dir",
    None,
    "Where checkpoints go in place of --job_dir/checkpoints; also for scripts. A path, or what "
    "TensorFlow's file systems reach, such as gs://bucket/job. For one job at a time. Default: the "
    "configuration's, else --job_dir/checkpoints.",
)
ALL = (EVERY_N_EPOCHS, EVERY_N_STEPS, EVERY_MINUTES, KEEP, DIRECTORY)


def absolute_directory() -> dict[str, str]:
    """The directory, if it is given, as workers find it wherever they are."""
    given = DIRECTORY.value
    if not given:
        return {}
    return {DIRECTORY.name: given if "://" in given else str(Path(given).resolve())}
