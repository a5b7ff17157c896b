"""The flags of `run` for jobs that evaluate or predict (`--job`), and their checks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from absl import flags

from hvd_elastic_keras.cli.flags import find_model, job_flags
from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.settings.job_spec import EVALUATE, JOBS, PREDICT, TRAIN, JobSpec
from hvd_elastic_keras.settings.training_config import TrainingConfig

PREDICTED_AT_ONCE = 1024
"""Default number of examples in a step of predictions. No optimizer depends on it."""
JOB = flags.DEFINE_enum(
    "job",
    TRAIN,
    JOBS,
    "What to do with the model: train it; evaluate it once, with weights of --checkpoint, as "
    "Model.evaluate does; or predict, as Model.predict does, to files in --output.",
)
CHECKPOINT = flags.DEFINE_string(
    "checkpoint",
    "",
    "With --job=evaluate or predict: the weights. The directory of a job, a checkpoint, or a file "
    "of Keras (.keras, .weights.h5). All hosts with workers need it.",
)
SPLIT = flags.DEFINE_string(
    "split",
    "",
    "With --job=evaluate or predict: what dataset(split) is asked for. Default: validation, or "
    "predict.",
)
OUTPUT = flags.DEFINE_string(
    "output",
    "",
    "With --job=predict: the directory that predictions go to, on a file system that all hosts "
    "with workers share. What is there is not computed again. Default: --job_dir/predictions.",
)
ALL = (JOB, CHECKPOINT, SPLIT, OUTPUT)
DEFAULT_SPLITS = {EVALUATE: "validation", PREDICT: "predict"}
ONLY_TO_TRAIN = (
    *("epochs", "steps", "drop_remainder", "batch", *job_flags.GROWTH_FLAGS, "init_from"),
    *("balance", "audit", "on_nonfinite", "check_weights_every_n_steps", "compression", "export"),
    *("checkpoint_every_n_epochs", "checkpoint_every_n_steps", "checkpoint_every_minutes"),
    *("keep_checkpoints", "keep_best", "checkpoint_dir"),
)
ONLY_WITH_SUMS = ("micro_batches", "micro_batches_together")


def check() -> None:
    """Raises `ConfigurationError` for flags that make no sense with the job."""
    job = JOB.value
    if job == TRAIN:
        _refuse(("checkpoint", "split", "output"), "without --job=evaluate or --job=predict")
        return
    _refuse(ONLY_TO_TRAIN, f"together with --job={job}, which does not train")
    if job == EVALUATE:
        _refuse(
            ("output",), f"together with --job={job}, which writes {files.RESULTS} to --job_dir"
        )
    else:
        _refuse(ONLY_WITH_SUMS, f"together with --job={job}, which has no sums")
    if not CHECKPOINT.value:
        raise ConfigurationError(
            f"--job={job} was given without --checkpoint. Say where the weights are: the directory "
            "of a job, a checkpoint, or a file of Keras (.keras, .weights.h5)."
        )


def refuse_with_script(script: str) -> None:
    """Raises `ConfigurationError` if a flag for a model module is given together with a script."""
    _refuse(
        [f.name for f in ALL],
        f"together with the script {script}, which says itself what it does",
    )


def values_that_count(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of a reference configuration without those that the job does not use."""
    others: tuple[str, ...] = () if JOB.value == TRAIN else ONLY_TO_TRAIN
    if JOB.value == PREDICT:
        others = (*others, *ONLY_WITH_SUMS, "global_batch_size", "micro_batch_size")
    return {name: value for name, value in config.items() if name not in others}


def spec(config: dict[str, Any], job_dir: Path) -> JobSpec:
    """Returns the requested job. Call `check` first.

    Args:
      config: values of the reference configuration; values only for training are ignored.
    """
    job = JOB.value
    known = [job_flags.TRAINING_FLAGS[n] for n in ("global_batch_size", "micro_batch_size", "seed")]
    values: dict[str, Any] = {} if job == EVALUATE else {"global_batch_size": PREDICTED_AT_ONCE}
    of_config = values_that_count(config)
    values |= {f.name: of_config[f.name] for f in known if f.name in of_config}
    values |= {f.name: f.value for f in known if f.value is not None}
    output = Path(OUTPUT.value).resolve() if OUTPUT.value else job_dir / files.PREDICTIONS
    return JobSpec(
        TrainingConfig(**values),
        job_flags.MODEL.value,
        job_flags.DATA_DIR.value,
        config=config,
        job=job,
        # Absolute, because workers may run elsewhere.
        checkpoint=str(Path(CHECKPOINT.value).resolve()),
        split=SPLIT.value or DEFAULT_SPLITS[job],
        output=str(output) if job == PREDICT else "",
    )


def default_name(model: str) -> str:
    """Returns the name from which the job directory gets its own."""
    name = find_model.short_name(model)
    return name if JOB.value == TRAIN else f"{name}-{JOB.value}"


def _refuse(unwanted: Iterable[str], why: str) -> None:
    given = [f"--{name}" for name in unwanted if flags.FLAGS[name].present]
    if given:
        raise ConfigurationError(f"{', '.join(given)} was given {why}. Leave it out.")
