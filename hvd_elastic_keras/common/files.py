"""Names, atomic writing and reading of the files under `job_dir`."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from hvd_elastic_keras.common import control, messages
from hvd_elastic_keras.common.errors import ConfigurationError

JOB = "job.json"
JOB_ID = "job.id"
"""File with the job's random id. A process that finds this id sees the job directory."""

MASTER = "master.json"
CERTIFICATE = "certificate.pem"
"""The master's certificate under TLS, with its key."""

LOCK = "job.lock"
"""The launcher holds this lock while it runs."""

LOGS = "logs"
LAUNCHER_LOG = "launcher.log"
"""File among the logs for the launcher's output, once nobody can read it elsewhere any more."""

MODEL = "model.keras"
WEIGHTS = "model.weights.h5"
"""Written in place of `MODEL` if the model cannot be saved."""

BEST = "best.keras"
"""The model of the best epoch, with `--keep_best`."""
BEST_WEIGHTS = "best.weights.h5"
"""Written in place of `BEST` if the model cannot be saved."""
BEST_RECORD = "best.json"
"""Which epoch `BEST` is of."""

HISTORY = "history.json"
RESULTS = "results.json"
"""Results of an evaluation."""

PREDICTIONS = "predictions"
"""The directory of predictions, unless another one is asked for."""

CHECKPOINTS = "checkpoints"
LEDGER = "ledger"
TIMELINES = "timelines"
EVENTS = "events.jsonl"
REPORT = "report.html"
EXPORT = "saved_model"
TENSORBOARD = "tensorboard"
JOURNAL = "journal"
"""The master's decisions."""

WORKERS = "workers"
"""Notes on the local workers: which ones run, and how the others ended."""

OTHERS = 0o077
"""Permissions of everybody but the owner."""


def training_dir(job_dir: Path, number: int) -> Path:
    """Returns the directory for the results of a job's training `number` (from 1).

    >>> str(training_dir(Path("job"), 1)), str(training_dir(Path("job"), 2))
    ('job', 'job/training-2')
    """
    return job_dir if number <= 1 else job_dir / f"training-{number}"


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Lets `write` fill a file beside `path`, then puts it in place with one rename.

    The temporary name keeps all suffixes, because Keras chooses the format by them.
    """
    temporary = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """Returns the content of a file of JSON; None if there is none that can be read."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON file atomically.

    NumPy numbers and arrays become plain ones. Other values that JSON does not know become numbers
    if possible, otherwise text.
    """
    text = json.dumps(content, indent=2, default=_plain) + "\n"

    def write(temporary: Path) -> None:
        temporary.write_text(text)

    write_atomically(path, write)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file atomically."""

    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    write_atomically(path, write)


def end_of(path: Path, most_bytes: int) -> str:
    """Returns the end of a text file, which may be very long; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most_bytes))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def is_secret(about: os.stat_result) -> bool:
    """Whether only its owner may access a file, as `write_secret` leaves it."""
    return not stat.S_IMODE(about.st_mode) & OTHERS


def write_secret(path: Path, content: bytes) -> None:
    """Writes a file atomically, so that only the user can read it."""

    def write(temporary: Path) -> None:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)

    write_atomically(path, write)


def write_endpoint(job_dir: Path, address: str, token: str, fingerprint: str = "") -> None:
    """Writes `master.json`, readable only by the user because it holds the job's token."""
    endpoint = control.Endpoint(
        version=messages.PROTOCOL_VERSION,
        address=address,
        token=token,
        pid=os.getpid(),
        job_dir=str(job_dir.resolve()),
        fingerprint=fingerprint,
    )
    write_secret(job_dir / MASTER, messages.encode(endpoint))


def read_job_id(job_dir: Path) -> str:
    """Returns the job's random id; raises `OSError` if this process does not see the directory."""
    return (job_dir / JOB_ID).read_text().strip()


def read_endpoint(job_dir: Path) -> control.Endpoint:
    """Reads `master.json`.

    Raises:
      ConfigurationError: no job runs there.
      messages.ProtocolError: the file holds something else.
    """
    path = job_dir / MASTER
    try:
        endpoint = messages.decode(path.read_bytes(), control.Endpoint)
    except OSError as error:
        raise ConfigurationError(
            f"No running job was found in {job_dir}: {path} cannot be read ({error.strerror}). "
            "Give the --job_dir of a job that is running."
        ) from error
    except messages.ProtocolError as error:
        raise messages.ProtocolError(f"{path} cannot be used. {error}") from error
    if endpoint.version != messages.PROTOCOL_VERSION:
        raise ConfigurationError(
            f"The job in {job_dir} speaks protocol version {endpoint.version}, this program "
            f"version {messages.PROTOCOL_VERSION}. Use the release the job was started with."
        )
    if is_copy(job_dir, endpoint.job_dir):
        raise ConfigurationError(
            f"No running job was found in {job_dir}: it is a copy of {endpoint.job_dir}, whose job "
            f"{path} names. Give --job_dir={endpoint.job_dir} if that is meant."
        )
    return endpoint


def is_copy(job_dir: Path, written_in: str) -> bool:
    """Whether a file in `job_dir` is a copy of a file that was written in `written_in`.

    It is no copy if `written_in` does not exist: then the directory was moved, or another host
    sees it at another place.
    """
    try:
        return bool(written_in) and not Path(written_in).samefile(job_dir)
    except OSError:
        return False


def remove_endpoint(job_dir: Path) -> None:
    """Removes `master.json` and the certificate when the job is over."""
    for name in (MASTER, CERTIFICATE):
        (job_dir / name).unlink(missing_ok=True)


def event_entries(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yields the entries of `EVENTS`; skips lines that a killed launcher or full disk tore."""
    for line in lines:
        try:
            entry = parse_json(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and "event" in entry:
            yield entry


def timeline_of_round(directory: str | Path, number: int) -> Path:
    """Returns the file to which rank 0 of a round writes Horovod's timeline."""
    return Path(directory) / f"round-{number:06d}.json"


@contextlib.contextmanager
def only_value_errors() -> Iterator[None]:
    """Turns a parser's `RecursionError` for deeply nested text into a `ValueError`."""
    try:
        yield
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def parse_json(
    text: str | bytes, object_hook: Callable[[dict[str, Any]], Any] | None = None
) -> Any:
    """Returns the value of a JSON text.

    Raises:
      ValueError: the text is not JSON.
    """
    with only_value_errors():
        return json.loads(text, object_hook=object_hook)
