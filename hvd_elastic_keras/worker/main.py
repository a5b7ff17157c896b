"""Entry point of a worker process that trains a model module (`python -m …worker.main`)."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from hvd_elastic_keras import env, files
from hvd_elastic_keras.config import JobSpec
from hvd_elastic_keras.errors import (
    ConfigurationError,
    ElasticError,
    TrainingOverError,
    WorkerLeavingError,
)
from hvd_elastic_keras.worker.session import ElasticSession


def main() -> int:
    """Trains until the end, or until this worker has to leave. Returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
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
        # Before TensorFlow is imported: the master sees a heartbeat, and SIGTERM is heard.
        session.start()
        _train(session, JobSpec.load(Path(environment.job_dir) / files.JOB))
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


def _train(session: ElasticSession, spec: JobSpec) -> None:
    from hvd_elastic_keras.training.job import make_trainer

    logging.getLogger("absl").setLevel(logging.WARNING)
    make_trainer(spec, session).fit()


if __name__ == "__main__":
    code = main()
    env.remove_scratch()
    sys.stdout.flush()
    sys.stderr.flush()
    # Without TensorFlow's and Horovod's tidy-up, which takes a second that peers might wait for.
    os._exit(code)
