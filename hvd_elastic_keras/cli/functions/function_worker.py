"""The script of the workers of `run_function`: runs a function that was pickled.

    function_worker.py DIRECTORY

The rest of the package treats it as a user's script. The function trains with `ElasticCallback`,
`Trainer` or `elastic.run`; an exception in it ends the worker, as in any script.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import hvd_elastic_keras
from hvd_elastic_keras.cli.functions import function_files
from hvd_elastic_keras.common.errors import ElasticError
from hvd_elastic_keras.settings import env

sys.path.pop(0)  # drop this file's folder, from which nothing is to be imported


def main() -> None:
    """Calls the function; one worker, the root, writes the returned value."""
    directory = Path(sys.argv[1])
    environment = env.worker_environment()
    worker_id = environment.worker_id if environment else "alone"
    # From this first use of the package on, an uncaught `ConfigurationError` ends the job.
    root_only = hvd_elastic_keras.root_only
    try:
        function, args, kwargs = function_files.load_call(directory)
        value = function(*args, **kwargs)
        with root_only() as root:
            if root:
                function_files.write_result(directory, value)
    except Exception as error:
        function_files.write_error(directory, worker_id, _text_of(error))
        raise


def _text_of(error: Exception) -> str:
    """Returns the traceback from the function on.

    An error of this package explains itself, so only its text is returned.
    """
    if isinstance(error, ElasticError):
        return str(error)
    trace = error.__traceback__
    return "".join(
        traceback.format_exception(type(error), error, trace.tb_next if trace else None)
    ).rstrip()


if __name__ == "__main__":
    main()
