"""Command line for a running job (`python -m hvd_elastic_keras.ctl --help`).

python -m hvd_elastic_keras.ctl --job_dir=DIR status
python -m hvd_elastic_keras.ctl --job_dir=DIR add 2
python -m hvd_elastic_keras.ctl --job_dir=DIR remove 1
python -m hvd_elastic_keras.ctl --job_dir=DIR remove w3
python -m hvd_elastic_keras.ctl --job_dir=DIR revoke --slots=2 --deadline_s=30
python -m hvd_elastic_keras.ctl --job_dir=DIR grant --slots=2
python -m hvd_elastic_keras.ctl --job_dir=DIR audit
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import requests
from absl import app, flags

from hvd_elastic_keras import command_line, files, job_ledgers, protocol
from hvd_elastic_keras.errors import ConfigurationError, ElasticError, MasterUnreachableError

REQUEST_TIMEOUT_S = 10.0
COMMANDS = (
    "status, add N, remove N, remove WORKER_ID, revoke --slots=K [--host=H] [--deadline_s=D], "
    "grant --slots=K [--host=H], audit"
)
SLOTS_FLAGS = ("slots", "host", "deadline_s")
IGNORED = {
    "status": SLOTS_FLAGS,
    "add": SLOTS_FLAGS,
    "remove": SLOTS_FLAGS,
    "grant": ("deadline_s",),
    "audit": (*SLOTS_FLAGS, "json"),
}
"""Flags that a command has no use for."""


def define_flags() -> None:
    """Not at import: `run` has a flag of the same name."""
    flags.DEFINE_string("job_dir", None, "Directory of the job: running, but for audit.")
    flags.DEFINE_bool("json", False, "Print the status as JSON, for programs.")
    flags.DEFINE_integer("slots", None, "How many slots to revoke or grant.")
    flags.DEFINE_string("host", "", "Host of the slots; may be left out with one host.")
    flags.DEFINE_float(
        "deadline_s", None, "Seconds after which revoked workers that have not left are killed."
    )


def status_table(status: protocol.JobStatus) -> str:
    """The status for people."""
    detail = f" ({status.detail})" if status.detail else ""
    training = f"training {status.training}  " if status.training > 1 else ""
    head = (
        f"{status.phase}{detail}  {training}round {status.round}  step {status.step}  "
        f"slots {slots_text(status.slots)}  "
        f"restarts {status.restarts_used}/{status.max_restarts}\n"
    )
    rows = [("WORKER", "PHASE", "RANK", "HOST", "PID", "SENIORITY", "STEP", "HEARTBEAT")]
    for worker in status.workers:
        age = worker.heartbeat_age_s
        rows.append(
            (
                worker.worker_id,
                worker.phase,
                _cell(worker.rank),
                worker.host,
                _cell(worker.pid),
                _cell(worker.seniority),
                str(worker.step),
                "-" if age is None else f"{age:.1f} s ago",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    return head + "\n".join(line.rstrip() for line in lines)


def slots_text(slots: Sequence[protocol.HostSlots]) -> str:
    """Granted and used slots; with the host's name if there are several."""
    several = len(slots) > 1
    return "; ".join(
        f"{f'{there.host}: ' if several else ''}{there.granted} granted, {there.used} used"
        for there in slots
    )


def _cell(value: int | None) -> str:
    return "-" if value is None else str(value)


def change_request(command: str, argument: str) -> protocol.ChangeRequest:
    """Parses `add N` and `remove N|WORKER_ID`.

    Raises:
      ConfigurationError: N is not a positive number.
    """
    if argument.isdecimal() and int(argument) >= 1:
        count = int(argument)
        if command == "add":
            return protocol.ChangeRequest(add=count)
        return protocol.ChangeRequest(remove=count)
    _check_text(command, argument)
    if command == "remove" and argument and not argument.lstrip("-").isnumeric():
        return protocol.ChangeRequest(remove_worker_id=argument)
    expected = "a number of at least 1" + (" or a worker id" if command == "remove" else "")
    raise ConfigurationError(f"{command} {argument} was given, expected {expected}.")


def slots_request(
    command: str, slots: int | None, host: str, deadline_s: float | None
) -> protocol.SlotsRequest:
    """The request of `revoke` and `grant`.

    Raises:
      ConfigurationError: a flag is missing or makes no sense.
    """
    if slots is None:
        raise ConfigurationError(f"--slots is missing. Give {command} a number: --slots=1.")
    _check_text("--host", host)
    request = protocol.SlotsRequest(
        revoke=slots if command == "revoke" else None,
        grant=slots if command == "grant" else None,
        host=host,
        deadline_s=deadline_s,
    )
    if request.mistake:
        raise ConfigurationError(request.mistake)
    return request


def _check_text(name: str, value: str) -> None:
    """Raises `ConfigurationError` for bytes of the command line that are no text."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"{name} {value!r} was given, expected text in UTF-8.") from None


def _call(endpoint: protocol.Endpoint, method: str, path: str, body: bytes | None) -> bytes:
    try:
        response = requests.request(
            method,
            f"http://{endpoint.address}/v1/{path}",
            data=body,
            headers={"Authorization": f"Bearer {endpoint.token}"},
            timeout=REQUEST_TIMEOUT_S,
            proxies={"http": ""},
        )
        if not response.ok and response.status_code != protocol.CONFLICT:
            raise MasterUnreachableError(
                f"The job's master refused the request ({response.status_code}): {response.text}"
            )
    except requests.RequestException as error:
        raise MasterUnreachableError(
            f"The job's launcher (process {endpoint.pid}, {endpoint.address}) does not answer. If "
            "it is gone, start the job again with the same --job_dir to go on."
        ) from error
    return response.content


def _run(arguments: Sequence[str]) -> int:
    command, *rest = arguments[1:] or ["?"]
    job_dir = flags.FLAGS.job_dir
    _check_flags_of(command)
    if job_dir is None:
        raise ConfigurationError("--job_dir is missing. Give the directory of a job.")
    if command == "status" and not rest:
        endpoint = files.read_endpoint(Path(job_dir))
        answer = _call(endpoint, "GET", "status", None)
        if flags.FLAGS.json:
            print(answer.decode())
        else:
            print(status_table(protocol.decode(answer, protocol.JobStatus)))
        return 0
    if command in ("add", "remove") and len(rest) == 1:
        body = protocol.encode(change_request(command, rest[0]))
        endpoint = files.read_endpoint(Path(job_dir))
        answer = _call(endpoint, "POST", "workers", body)
        return _tell(protocol.decode(answer, protocol.ChangeReply))
    if command in ("revoke", "grant") and not rest:
        values = flags.FLAGS
        request = slots_request(command, values.slots, values.host, values.deadline_s)
        endpoint = files.read_endpoint(Path(job_dir))
        answer = _call(endpoint, "POST", "slots", protocol.encode(request))
        return _tell(protocol.decode(answer, protocol.SlotsReply))
    if command == "audit" and not rest:
        return audit(Path(job_dir))
    raise ConfigurationError(f"{' '.join(arguments[1:])!r} was given, expected one of: {COMMANDS}.")


def audit(job_dir: Path) -> int:
    """Judges anew what `run --audit` has written.

    Returns:
      1 if some example was not used exactly once, or a ledger is missing.
    """
    good = True
    for finding in job_ledgers.findings(job_dir):
        print(finding.text)
        good = good and finding.good
    return 0 if good else 1


def _check_flags_of(command: str) -> None:
    """Refuses flags that a command would ignore."""
    given = [f"--{name}" for name in IGNORED.get(command, ()) if flags.FLAGS[name].present]
    if given:
        raise ConfigurationError(f"{', '.join(given)} was given, which {command} does not take.")


def _tell(reply: protocol.ChangeReply | protocol.SlotsReply) -> int:
    """Shows what was decided; returns the exit code."""
    print(reply.text, file=sys.stdout if reply.accepted else sys.stderr)
    return 0 if reply.accepted else 1


def _main(arguments: Sequence[str]) -> int:
    try:
        return _run(arguments)
    except ElasticError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def main() -> None:
    """Parses the command line and carries out one command."""
    define_flags()
    flags.FLAGS.set_gnu_getopt(True)
    app.run(_main, flags_parser=command_line.parse_flags)


if __name__ == "__main__":
    main()
