"""Names, atomic writing and reading of the files under `job_dir`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from hvd_elastic_keras import protocol
from hvd_elastic_keras.errors import ConfigurationError

JOB = "job.json"
MASTER = "master.json"
LOGS = "logs"
MODEL = "model.keras"
HISTORY = "history.json"
CHECKPOINTS = "checkpoints"
LEDGER = "ledger"
TIMELINES = "timelines"
EVENTS = "events.jsonl"


def training_dir(job_dir: Path, number: int) -> Path:
    """Where the results of a job's training number `number` (from 1) go.

    >>> str(training_dir(Path("job"), 1)), str(training_dir(Path("job"), 2))
    ('job', 'job/training-2')
    """
    return job_dir if number <= 1 else job_dir / f"training-{number}"


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Lets `write` fill a file beside `path`, then puts it in place with one rename.

    The temporary name keeps the suffix, because Keras chooses the format by it.
    """
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON file atomically; NumPy's numbers and arrays become plain ones."""
    text = json.dumps(content, indent=2, default=_plain) + "\n"

    def write(temporary: Path) -> None:
        temporary.write_text(text)

    write_atomically(path, write)


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else float(value)


def write_endpoint(job_dir: Path, address: str, token: str) -> None:
    """Writes `master.json`, readable by the user alone: it holds the job's token."""
    endpoint = protocol.Endpoint(
        version=protocol.PROTOCOL_VERSION, address=address, token=token, pid=os.getpid()
    )

    def write(path: Path) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(protocol.encode(endpoint))

    write_atomically(job_dir / MASTER, write)


def read_endpoint(job_dir: Path) -> protocol.Endpoint:
    """Reads `master.json`.

    Raises:
      ConfigurationError: no job runs there.
    """
    path = job_dir / MASTER
    try:
        endpoint = protocol.decode(path.read_bytes(), protocol.Endpoint)
    except OSError as error:
        raise ConfigurationError(
            f"No running job was found in {job_dir}: {path} cannot be read ({error.strerror}). "
            "Give the --job_dir of a job that is running."
        ) from error
    if endpoint.version != protocol.PROTOCOL_VERSION:
        raise ConfigurationError(
            f"The job in {job_dir} speaks protocol version {endpoint.version}, this program "
            f"version {protocol.PROTOCOL_VERSION}. Use the release the job was started with."
        )
    return endpoint


def remove_endpoint(job_dir: Path) -> None:
    """Removes `master.json` when the job is over."""
    (job_dir / MASTER).unlink(missing_ok=True)


def event_entries(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The entries in lines of `EVENTS`, without those that a killed launcher or full disk tore."""
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and "event" in entry:
            yield entry
