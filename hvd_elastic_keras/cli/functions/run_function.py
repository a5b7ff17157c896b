"""`run_function`: runs a function, such as one of a notebook, on elastic workers."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import site
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hvd_elastic_keras.cli import job_directory
from hvd_elastic_keras.cli.functions import end_with_parent, function_files
from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import ConfigurationError, FunctionFailedError
from hvd_elastic_keras.settings import env

FLAGS = frozenset(
    {
        *("min_workers", "max_workers", "max_restarts", "restart_window_s", "gpus_per_worker"),
        *("checkpoint_every_n_epochs", "checkpoint_every_n_steps", "checkpoint_every_minutes"),
        *("keep_checkpoints", "keep_best", "checkpoint_dir"),
        *("deterministic", "deterministic_threads"),
        *("check_weights_every_n_steps", "skip_corrupt", "balance", "on_nonfinite", "audit"),
        *("micro_batches", "micro_batches_together", "compression", "network_interface"),
        *("batch_norm", "explain_step", "check_step"),
        *("dashboard", "report", "tensorboard", "timeline", "all_output"),
        *("heartbeat_timeout_s", "stall_timeout_s", "start_up_timeout_s", "enter_timeout_s"),
        *("wait_timeout_s", "master_timeout_s"),
    }
)
"""The flags of `run` that suit the job of a function, whose workers are on this machine."""
REASONS = ("[elastic] the job failed: ", "[elastic] stopped ", "error: ")
"""Beginnings of the line in which a launcher says why there is no result."""
WORKER = Path(__file__).resolve().with_name(job_directory.FUNCTION_WORKER)
"""The script of the workers."""
END_WITHIN_S = 30.0
"""Seconds for the launcher after SIGTERM, when nobody can read its output any more."""


def run_function(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    num_workers: int = 2,
    job_dir: str | Path | None = None,
    **flags: Any,
) -> Any:
    """Runs a function on elastic workers of this machine and returns its value of rank 0.

    The function takes the place of a script. Each worker, also a replacement, calls it from its
    first line. The function trains with `ElasticCallback`, `Trainer` or `elastic.run`. It is
    pickled with cloudpickle, together with the surroundings that it uses, so it may be defined in
    a notebook.

    Args:
      fn: called as `fn(*args, **kwargs)`.
      args: positional arguments; must be picklable.
      kwargs: arguments by name; must be picklable.
      num_workers: number of processes that train.
      job_dir: directory for logs, checkpoints and results. If it has checkpoints, the job goes on
        from them. None makes a new directory under `jobs`.
      flags: flags of `python -m hvd_elastic_keras.run`, such as `deterministic=True`; see `FLAGS`.

    Returns:
      The value that `fn` returned on the worker that was rank 0 at the end.

    Raises:
      ConfigurationError: an argument is wrong or cannot be pickled; nothing has been started.
      FunctionFailedError: the job has failed; the message has the traceback of a worker.
      KeyboardInterrupt: this process was interrupted; raised after the job has stopped.

    Example:

        def train(units):
            model = keras.Sequential([keras.layers.Dense(units, "relu"), keras.layers.Dense(10)])
            ...
            return model.fit(x, y, callbacks=[ElasticCallback()]).history

        history = hvd_elastic_keras.run_function(train, args=(64,), num_workers=4)
    """
    if env.worker_environment() is not None:
        raise ConfigurationError(
            "run_function was called in a worker of a job. Call it in a notebook or a script that "
            "was started by itself; here, call the function."
        )
    options = _options({"num_workers": num_workers, **flags}, flags)
    call = function_files.pickled_call(fn, args, kwargs or {})
    with _directory_of_call(_job_dir(job_dir, fn)) as (directory, call_dir):
        files.write_secret(call_dir / function_files.CALL, call)
        command = [f"--job_dir={directory}", *options, str(WORKER), str(call_dir)]
        reason = _run([sys.executable, "-m", "hvd_elastic_keras.run", *command])
        try:
            if not reason:
                return function_files.read_result(call_dir)
        except FileNotFoundError:
            reason = "no worker has come to the end of the function"
        raise FunctionFailedError(_failure(fn, reason, call_dir, directory))


def _options(values: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    unknown = sorted(given.keys() - FLAGS)
    if unknown:
        raise ConfigurationError(
            f"run_function was given {', '.join(unknown)}, which a function's job cannot have. It "
            f"takes: {', '.join(sorted(FLAGS))}. The rest is for the function itself to say."
        )
    return [
        f"--{'' if value else 'no'}{name}" if isinstance(value, bool) else f"--{name}={value}"
        for name, value in values.items()
        if value is not None
    ]


def _job_dir(wanted: str | Path | None, fn: Callable[..., Any]) -> Path:
    if wanted is not None:
        return Path(wanted).resolve()
    name = "".join(c if c.isalnum() else "_" for c in function_files.name_of(fn)).strip("_")
    return job_directory.of_name(name or "function")


@contextlib.contextmanager
def _directory_of_call(job_dir: Path) -> Iterator[tuple[Path, Path]]:
    """Yields the job directory, and one in it for this call, which only this user can read."""
    try:
        job_dir.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=function_files.DIRECTORY_PREFIX, dir=job_dir))
    except OSError as error:
        raise ConfigurationError(
            f"job_dir={job_dir} cannot be used: {error.strerror}. Give a directory that can be "
            "written."
        ) from error
    try:
        yield job_dir, made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _run(command: list[str]) -> str:
    """Runs a launcher to its end and shows its output; returns why it failed, or an empty string.

    The launcher has its own session. A notebook's interrupt goes to all processes of the kernel's
    group, but the launcher must get it only once.
    """
    program = str(Path(end_with_parent.__file__).resolve())
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", program, str(os.getpid()), *command],
        env=env.child_environment(_search_path(), {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
        errors="replace",
    )
    try:
        reason, interrupted = _show(process)
    finally:
        _end(process)
    if interrupted:
        raise KeyboardInterrupt
    return (reason or f"its launcher ended with {process.returncode}") if process.returncode else ""


def _show(process: subprocess.Popen[str]) -> tuple[str, bool]:
    """Prints the lines of a launcher; returns why it failed, and whether it was interrupted."""
    reason, interrupted = "", False
    while True:
        try:
            for line in process.stdout or ():
                # The job goes on if nobody can read the output.
                with contextlib.suppress(OSError, ValueError):
                    print(line, end="", flush=True)
                begin = next((b for b in REASONS if line.startswith(b)), None)
                if begin:
                    reason = line.removeprefix(begin).strip()
            process.wait()
            return reason, interrupted
        except KeyboardInterrupt:
            interrupted = True
            process.send_signal(signal.SIGINT)


def _end(process: subprocess.Popen[str]) -> None:
    """Ends the launcher if it still runs, because nobody waits for it any more."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
    if process.stdout:
        process.stdout.close()


def _search_path() -> dict[str, str]:
    """Returns variables by which the launcher finds this package.

    The package's directory may be known to the notebook alone.
    """
    root = str(Path(__file__).resolve().parents[3])
    if root in (*site.getsitepackages(), site.getusersitepackages()):
        return {}
    before = env.variables_named(["PYTHONPATH"]).get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join(filter(None, (root, before)))}


def _failure(fn: Callable[..., Any], reason: str, call_dir: Path, job_dir: Path) -> str:
    error = function_files.newest_error(call_dir)
    name = function_files.name_of(fn)
    if error is None:
        return f"{name}: {reason}. Logs: {job_dir}/logs"
    worker_id, text = error
    return f"{name} failed on {worker_id} ({reason}). Logs: {job_dir}/logs\n\n{text}"
