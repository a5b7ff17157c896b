"""The program of a worker, for a job that runs a script.

    script_main.py script.py --flag_of_script=1

It runs the script as `python script.py` does, with two additions. Random numbers are drawn from the
job's seed (`api/job_seed.py`), and `Model.fit` is elastic by itself (`api/unchanged_fit.py`). Both
wait until the script imports NumPy, TensorFlow or Keras, because a script may set environment
variables first that matter for these imports.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

sys.path.pop(0)  # drop this file's folder, from which nothing is to be imported
sys.path.append(str(Path(__file__).resolve().parents[2]))  # the package need not be installed

from hvd_elastic_keras.api import job_seed
from hvd_elastic_keras.common import env, garbage, patches
from hvd_elastic_keras.worker.session_of_process import refuse_what_is_not_caught


def main() -> None:
    """Runs the script that the command line names, in a module `__main__` of its own."""
    del sys.argv[0]
    script = Path(sys.argv[0]).absolute()
    sys.path.insert(0, str(script.resolve().parent))
    environment = env.worker_environment()
    collect_as_before = garbage.collect_rarely()
    patches.after_import(["tensorflow"], collect_as_before)
    if environment is not None:
        refuse_what_is_not_caught(environment)
        if environment.options.seed is not None:
            job_seed.install(environment.options.seed)
        elastic_fit = environment.options.with_script().elastic_fit
        patches.after_import(["tensorflow", "keras"], lambda: _prepare(elastic_fit=elastic_fit))
    module = types.ModuleType("__main__")
    module.__file__ = str(script)
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = module
    try:
        exec(compile(script.read_bytes(), str(script), "exec"), module.__dict__)
    except Exception as error:
        # As Python shows an error of a script: without the frame of this function.
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        sys.excepthook(type(error), error, error.__traceback__)
        raise SystemExit(1) from None


def _prepare(*, elastic_fit: bool) -> None:
    from hvd_elastic_keras.data.sources import cache_files

    cache_files.install()
    if elastic_fit:
        from hvd_elastic_keras.keras_internals import release

        release.check_in_script()
        from hvd_elastic_keras.api import unchanged_fit

        unchanged_fit.install()


if __name__ == "__main__":
    main()
