"""Makes a `Trainer` from a job's specification; also checks the job before any worker starts."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import keras
import msgspec

from hvd_elastic_keras.api import inference_job
from hvd_elastic_keras.api.model_module import (
    ModelModule,
    check_reproducible,
    file_of_model,
    front,
    is_dataset,
    load_module,
    set_up,
)
from hvd_elastic_keras.api.trainer import Trainer
from hvd_elastic_keras.common import protocol
from hvd_elastic_keras.common.errors import ElasticError, explain
from hvd_elastic_keras.data.sources import cache_files
from hvd_elastic_keras.data.sources.source import DataLike
from hvd_elastic_keras.keras_internals.model_building import num_batch_norms
from hvd_elastic_keras.observe.notices import Notice, notices
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.job_spec import JobSpec
from hvd_elastic_keras.state.checkpoint import directories, manager
from hvd_elastic_keras.worker.session import Session, SoloSession

_FAILED = "The model module failed while it was checked; no worker has been started:"


def make_trainer(spec: JobSpec, session: Session) -> Trainer:
    """Loads the model module and makes a trainer from it.

    Raises:
      ConfigurationError: the module does not keep its contract.
    """
    set_up()
    module = load_module(spec)
    trainer = _trainer_of(module, _load_data(module), spec, session)
    notices.report_to(None)  # the check has already shown the same notices
    return trainer


def check(spec: JobSpec, job_dir: Path, *, explains: bool = False) -> dict[str, Any]:
    """Does everything a worker does before it joins, except tracing, and describes the job.

    Args:
      explains: whether to trace the training step all the same, and to show how workers share it.

    Raises:
      ConfigurationError: something is wrong, with the remedy.
    """
    set_up()
    module = load_module(spec)
    data = _load_data(module)
    # This comes before the trainer reads from the datasets: a dataset may have another order for
    # each iterator.
    fronts = {split: front(d) for split, d in data.items() if is_dataset(d)}
    trainer = _trainer_of(module, data, spec, SoloSession())
    checkpoint = trainer.check_checkpoint(job_dir)
    trainer.try_first_examples()
    if explains:
        trainer.explain_step()
    notices.report_to(None)  # the second load would repeat the same notices
    for split, again in _load_data(module).items():
        if again is not None:
            first = fronts[split] if split in fronts else front(data[split])
            check_reproducible(first, front(again), split)
    return {
        "checkpoint_step": directories.step_of(checkpoint) if checkpoint else None,
        "batch_norms": num_batch_norms(trainer.model),
        "parameters": int(trainer.model.count_params()),
        "micro_batch_size": trainer.micro_batch_size,
        "steps_per_epoch": trainer.steps_per_epoch,
        "num_examples": trainer.num_examples,
        "num_validation_examples": trainer.num_validation_examples,
    }


def _load_data(module: ModelModule) -> dict[str, DataLike | None]:
    # The data must not depend on earlier computations. The seeds of `shuffle` follow from this
    # seed, too.
    keras.utils.set_random_seed(module.seed)
    return {split: module.dataset(split) for split in ("train", "validation")}


def _trainer_of(
    module: ModelModule, data: dict[str, DataLike | None], spec: JobSpec, session: Session
) -> Trainer:
    trainer = Trainer(
        module.model(),
        data["train"],
        validation=data["validation"],
        config=spec.training,
        callbacks=module.callbacks(),
        session=session,
        counted=spec.num_examples,
    )
    if spec.init_from:
        manager.load_initial_weights(trainer.model, Path(spec.init_from))
    return trainer


def _print_notice(notice: Notice) -> None:
    print(protocol.NOTICE + msgspec.json.encode(notice).decode(), flush=True)


def main() -> int:
    """Checks a job and prints its description, or the error.

    python -m hvd_elastic_keras.api.model_job JOB_JSON JOB_DIR [explain_step]
    """
    env.set_defaults({"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"})
    logging.getLogger("absl").setLevel(logging.ERROR)
    notices.report_to(_print_notice)
    cache_files.install_for_look()
    path, job_dir, *others = sys.argv[1:]
    spec = JobSpec.load(Path(path))
    try:
        description = (
            check(spec, Path(job_dir), explains=bool(others))
            if spec.trains
            else inference_job.check(spec)
        )
    except ElasticError as error:
        print(json.dumps({"error": str(error)}))
        return 1
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        print(json.dumps({"error": f"{_FAILED}\n{explain(error, file_of_model(spec.model))}"}))
        return 1
    print(json.dumps({"description": description}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
