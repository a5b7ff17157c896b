"""The program of a worker, for a job that runs a model module."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import (
    ConfigurationError,
    ElasticError,
    TrainingOverError,
    WorkerLeavingError,
    exit_is_an_error,
)
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.job_spec import JobSpec
from hvd_elastic_keras.worker.elastic_session import ElasticSession

if TYPE_CHECKING:
    from hvd_elastic_keras.api.inference_job import InferenceJob
    from hvd_elastic_keras.api.trainer import Trainer

_kept: list[Trainer | InferenceJob] = []
"""Kept to the end of the process: to free the model and the input may take long, for no use."""


def main() -> int:
    """Works until the job ends or this worker has to leave; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format=env.LOG_FORMAT)
    env.set_defaults({"TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow"})
    environment = env.worker_environment()
    if environment is None:
        print(
            "This is a worker of a job. Start a job with: python -m hvd_elastic_keras.run",
            file=sys.stderr,
        )
        return 2
    session = ElasticSession(environment)
    try:
        # Start before TensorFlow is imported: the master gets a heartbeat, and SIGTERM is heard.
        session.start()
        spec = JobSpec.load(Path(environment.job_dir) / files.JOB)
        _prepare()
        if spec.trains:
            _train(session, spec)
        else:
            _infer(session, spec)
    except (TrainingOverError, WorkerLeavingError) as error:
        logging.info("leaving: %s", error)
    except ConfigurationError as error:
        logging.error("%s", error)
        session.refuse(str(error))
        return 2
    except ElasticError as error:
        logging.error("%s", error)
        return 1
    except Exception:
        logging.exception("this worker fails")
        return 1
    session.close()
    return 0


def _prepare() -> None:
    from hvd_elastic_keras.data.sources import cache_files
    from hvd_elastic_keras.state import keras_saving

    keras_saving.install()
    cache_files.install()
    logging.getLogger("absl").setLevel(logging.WARNING)


def _train(session: ElasticSession, spec: JobSpec) -> None:
    from hvd_elastic_keras.api.model_job import make_trainer

    with exit_is_an_error(spec.model):
        trainer = make_trainer(spec, session)
    _kept.append(trainer)
    trainer.fit()


def _infer(session: ElasticSession, spec: JobSpec) -> None:
    from hvd_elastic_keras.api.inference_job import make_inference

    with exit_is_an_error(spec.model):
        job = make_inference(spec, session)
    _kept.append(job)
    job.run()


if __name__ == "__main__":
    code = main()
    env.remove_scratch()
    sys.stdout.flush()
    sys.stderr.flush()
    # Skip the clean-up of TensorFlow and Horovod: it takes a second that peers might wait for.
    os._exit(code)
