"""`job.json`: the specification of a model module's job for its workers, or a script's seed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import UNSET

from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.settings.training_config import TrainingConfig

JOB_FORMAT_VERSION = 1
TRAIN, EVALUATE, PREDICT = "train", "evaluate", "predict"
JOBS = (TRAIN, EVALUATE, PREDICT)
"""The things that a job may do with a model."""


@dataclasses.dataclass(frozen=True)
class JobSpec:
    """Everything a worker needs to know, in `job_dir/job.json`.

    Attributes:
      model: the model module as the user gave it (path or dotted name); empty for a script.
      init_from: location of the weights to start from; empty: the model makes its own.
      config: values of the reference configuration, with overrides applied.
      num_examples: examples by split, counted by the check so that workers need not count them.
      job: one of `JOBS`.
      checkpoint: location of the weights to evaluate or predict with; empty in a training.
      split: the data to evaluate or predict, `dataset(split)`; not used in a training.
      output: directory for predictions.
    """

    training: TrainingConfig
    model: str = ""
    data_dir: str = ""
    init_from: str = ""
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    num_examples: dict[str, int] = dataclasses.field(default_factory=dict)
    job: str = TRAIN
    checkpoint: str = ""
    split: str = ""
    output: str = ""

    @property
    def trains(self) -> bool:
        """Whether the job trains; else it evaluates or predicts."""
        return self.job == TRAIN

    def save(self, path: Path) -> None:
        """Writes the specification as versioned JSON."""
        content = {"version": JOB_FORMAT_VERSION, **dataclasses.asdict(self)}
        training = content["training"]
        content["training"] = {n: v for n, v in training.items() if v is not UNSET}
        files.write_secret(path, f"{json.dumps(content, indent=2)}\n".encode())

    @classmethod
    def load(cls, path: Path) -> JobSpec:
        """Reads what `save` wrote.

        Raises:
          ConfigurationError: the file is not a job specification of this version.
        """
        try:
            text = path.read_text()
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{path} is not a job specification: {error}") from error
        return cls.decode(text, str(path))

    @classmethod
    def decode(cls, text: str, where: str) -> JobSpec:
        """Reads what `save` wrote to a file; `where` names it in errors.

        Raises:
          ConfigurationError: the text is not a job specification of this version.
        """
        try:
            content = files.parse_json(text)
            version = content.pop("version")
            if version == JOB_FORMAT_VERSION:
                training = TrainingConfig(**content.pop("training"))
                return cls(training=training, **content)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigurationError(f"{where} is not a job specification: {error}") from error
        raise ConfigurationError(
            f"{where} has format version {version}, expected {JOB_FORMAT_VERSION}. "
            "Use the release that wrote it, or another job_dir."
        )


def save_script(path: Path, script: Sequence[str], seed: int) -> None:
    """Writes the seed of a job that runs a script with arguments."""
    content = {"version": JOB_FORMAT_VERSION, "script": list(script), "seed": seed}
    files.write_secret(path, f"{json.dumps(content, indent=2)}\n".encode())


def seed_of_script(path: Path) -> int | None:
    """Returns the seed that `save_script` wrote; None if there is no such file.

    Raises:
      ConfigurationError: the file is damaged. Another seed would be refused by the checkpoints, or
        give other data.
    """
    try:
        seed = files.parse_json(path.read_bytes())["seed"]
    except (OSError, KeyError):
        return None
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{path}, which holds the seed of the job, is damaged: {error}. Give the seed with "
            "--seed. If you do not know it, give any number: the refusal names that of the "
            "checkpoint."
        ) from error
    return seed if isinstance(seed, int) else None
