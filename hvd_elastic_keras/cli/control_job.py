"""The requests of `ctl` to the master of a running job, and the display of the answers."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import requests
from urllib3.exceptions import ProtocolError

from hvd_elastic_keras.audit import report
from hvd_elastic_keras.cli import job_directory
from hvd_elastic_keras.common import control, events, files, goodput, messages
from hvd_elastic_keras.common.errors import ConfigurationError, MasterUnreachableError
from hvd_elastic_keras.common.master_session import session_of, url_of
from hvd_elastic_keras.common.protocol import FINISHED
from hvd_elastic_keras.observe import job_history
from hvd_elastic_keras.observe.console import table

REQUEST_TIMEOUT_S = 10.0
COMMAND_ID_BYTES = 8


class AnswerLostError(MasterUnreachableError):
    """The launcher may have received a request, but has not answered."""


def show_status(job_dir: Path, *, as_json: bool) -> int:
    """Prints the status of a running job, or how the job has ended."""
    try:
        status = read_status(job_dir)
    except ConfigurationError:
        end = job_history.end_of(job_dir)
        if end is None:
            raise
        text = messages.encode(_status_at(end)).decode() if as_json else end_in_words(end, job_dir)
        print(text)
        return 0
    print(messages.encode(status).decode() if as_json else status_table(status))
    return 0


def _status_at(end: events.JobFinished) -> control.JobStatus:
    """Returns the status of a job that has ended: how, in place of a phase, and no workers."""
    return control.JobStatus(
        phase=end.status,
        detail=end.reason,
        training=end.training,
        round=0,
        step=end.step,
        target_workers=0,
        slots=(),
        min_workers=0,
        max_workers=0,
        restarts_used=0,
        max_restarts=0,
        spent_s=end.spent_s,
        workers=(),
    )


def end_in_words(end: events.JobFinished, job_dir: Path) -> str:
    """Returns how a job has ended and, if it can go on, how."""
    how = how_it_ended(end.status, end.step, end.training, end.reason)
    return how if end.status == FINISHED else f"{how}\n{job_directory.to_continue(job_dir)}"


def how_it_ended(status: str, step: int, training: int, reason: str) -> str:
    """Returns in words how a job has ended; see `JobFinished`."""
    where = f" of training {training}" if training > 1 else ""
    how = f"{status} at step {step}{where}"
    return how if status == FINISHED else f"{how}: {reason}"


def read_status(job_dir: Path, timeout_s: float = REQUEST_TIMEOUT_S) -> control.JobStatus:
    """Asks the master of a running job for its status.

    Args:
      timeout_s: the seconds to wait for a connection, and for the answer.

    Raises:
      ConfigurationError: no job runs there.
      MasterUnreachableError: its launcher does not answer.
    """
    answer = _call(files.read_endpoint(job_dir), "GET", "status", None, timeout_s)
    return messages.decode(answer, control.JobStatus)


def change_workers(job_dir: Path, request: control.ChangeRequest) -> int:
    """Asks for more or fewer workers; returns 1 if the master refuses."""
    return _tell(messages.decode(_change(job_dir, "workers", request), control.ChangeReply))


def change_slots(job_dir: Path, request: control.SlotsRequest) -> int:
    """Grants or revokes slots; returns 1 if the master refuses."""
    return _tell(messages.decode(_change(job_dir, "slots", request), control.SlotsReply))


def stop(job_dir: Path) -> int:
    """Stops a running job after the current step."""
    body = messages.encode(control.StopRequest(reason="asked to by ctl stop"))
    answer = _call(_endpoint(job_dir), "POST", "stop", body)
    return _tell(messages.decode(answer, control.ChangeReply))


def _change(
    job_dir: Path, path: str, request: control.ChangeRequest | control.SlotsRequest
) -> bytes:
    """Asks for a change. If the answer is lost, asks once more; the master counts both as one."""
    command_id = request.command_id or secrets.token_hex(COMMAND_ID_BYTES)
    body = messages.encode(msgspec.structs.replace(request, command_id=command_id))
    try:
        return _call(_endpoint(job_dir), "POST", path, body)
    except AnswerLostError:
        pass
    try:
        return _call(_endpoint(job_dir), "POST", path, body)
    except (ConfigurationError, MasterUnreachableError) as error:
        raise MasterUnreachableError(
            f"{error} It is not known whether the change was made: with --command_id={command_id}, "
            "the same command makes it once, also if it was."
        ) from error


def audit(job_dir: Path) -> int:
    """Judges the ledgers of `run --audit` again.

    Returns:
      1 if an example was not used exactly once, a ledger is missing, or an event is unreadable;
      else 0.
    """
    good = True
    for finding in report.findings(job_dir):
        print(finding.text)
        good = good and finding.good
    return 0 if good else 1


def explain(job_dir: Path) -> int:
    """Prints the story of all changes of a job, also after its end.

    Raises:
      ConfigurationError: the directory has no events.
    """
    history = job_history.read(job_dir)
    if not history:
        raise ConfigurationError(
            f"There are no events in {job_dir / files.EVENTS}. Give the --job_dir of a job that "
            "has been started."
        )
    for line in job_history.explain(history):
        print(line)
    return 0


def show_dashboard(job_dir: Path, *, read_only: bool = False) -> int:
    """Prints the address of the dashboard of a running job."""
    endpoint = _endpoint(job_dir)
    print(endpoint.dashboard_to_read if read_only else endpoint.dashboard)
    return 0


def show_read_only_token(token: str) -> int:
    """Prints the token that may only read a job, given the job's token.

    Raises:
      ConfigurationError: there is no token.
    """
    if len(token.split()) != 1:
        raise ConfigurationError(
            f"Standard input has {len(token.split())} words, expected a job's token: the content "
            "of its --token_file, or `token` in its master.json."
        )
    print(control.read_only_token(token.strip()))
    return 0


def status_table(status: control.JobStatus) -> str:
    """Returns the status in a form for people."""
    detail = f" ({status.detail})" if status.detail else ""
    training = f"training {status.training}  " if status.training > 1 else ""
    head = (
        f"{status.phase}{detail}  {training}round {status.round}  step {status.step}  "
        f"slots {slots_text(status.slots)}  "
        f"restarts {status.restarts_used}/{status.max_restarts}\n"
    )
    rows = [
        (
            "WORKER",
            "PHASE",
            "RANK",
            "HOST",
            "PID",
            "SENIORITY",
            "STEP",
            "CORES",
            "MEMORY",
            "HEARTBEAT",
        )
    ]
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
                f"{worker.cores:.2f}" if worker.memory_bytes else "-",
                f"{worker.memory_bytes / 2**20:.0f} MiB" if worker.memory_bytes else "-",
                "-" if age is None else f"{age:.1f} s ago",
            )
        )
    spent = f"{goodput.told(status.spent_s)}\n" if status.spent_s else ""
    warnings = "".join(f"warning: {text}\n" for text in status.warnings)
    return head + warnings + spent + table(rows)


def slots_text(slots: Sequence[control.HostSlots]) -> str:
    """Returns the granted and used slots, with the names of the hosts if there are several."""
    several = len(slots) > 1
    return "; ".join(
        f"{f'{there.host}: ' if several else ''}{there.granted} granted, {there.used} used"
        for there in slots
    )


def _cell(value: int | None) -> str:
    return "-" if value is None else str(value)


def change_request(command: str, argument: str, command_id: str = "") -> control.ChangeRequest:
    """Parses `add N` and `remove N|WORKER_ID`.

    Raises:
      ConfigurationError: N is not a positive number.
    """
    _check_text("--command_id", command_id)
    if argument.isdecimal() and int(argument) >= 1:
        count = int(argument)
        if command == "add":
            return control.ChangeRequest(add=count, command_id=command_id)
        return control.ChangeRequest(remove=count, command_id=command_id)
    _check_text(command, argument)
    if command == "remove" and argument and not argument.lstrip("-").isnumeric():
        return control.ChangeRequest(remove_worker_id=argument, command_id=command_id)
    expected = "a number of at least 1" + (" or a worker id" if command == "remove" else "")
    raise ConfigurationError(f"{command} {argument} was given, expected {expected}.")


def slots_request(
    command: str, slots: int | None, host: str, deadline_s: float | None, command_id: str = ""
) -> control.SlotsRequest:
    """Returns the request of `revoke` or `grant`.

    Raises:
      ConfigurationError: a flag is missing or makes no sense.
    """
    if slots is None:
        raise ConfigurationError(f"--slots is missing. Give {command} a number: --slots=1.")
    _check_text("--host", host)
    _check_text("--command_id", command_id)
    request = control.SlotsRequest(
        revoke=slots if command == "revoke" else None,
        grant=slots if command == "grant" else None,
        host=host,
        deadline_s=deadline_s,
        command_id=command_id,
    )
    if request.mistake:
        raise ConfigurationError(request.mistake)
    return request


def _check_text(name: str, value: str) -> None:
    """Raises `ConfigurationError` for bytes of the command line that are not text."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"{name} {value!r} was given, expected text in UTF-8.") from None


def _endpoint(job_dir: Path) -> control.Endpoint:
    """Returns where the master of a running job listens.

    Raises:
      ConfigurationError: no job runs there. The message says how the last one has ended.
    """
    try:
        return files.read_endpoint(job_dir)
    except ConfigurationError:
        end = job_history.end_of(job_dir)
        if end is None:
            raise
        ended = end_in_words(end, job_dir).replace("\n", "; ")
        raise ConfigurationError(
            f"No running job was found in {job_dir}: the last one {ended}."
        ) from None


def _call(
    endpoint: control.Endpoint,
    method: str,
    path: str,
    body: bytes | None,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> bytes:
    url = url_of(endpoint.address, endpoint.fingerprint, path)
    try:
        with session_of(endpoint.token, endpoint.fingerprint) as session:
            response = session.request(method, url, data=body, timeout=timeout_s)
        if not response.ok and response.status_code != control.CONFLICT:
            raise MasterUnreachableError(
                f"The job's master refused the request ({response.status_code}): {response.text}"
            )
    except requests.RequestException as error:
        is_another = isinstance(error, requests.exceptions.SSLError)
        finding = f"is not at its address: {error}" if is_another else "does not answer"
        kind = AnswerLostError if _was_sent(error) else MasterUnreachableError
        raise kind(
            f"The job's launcher (process {endpoint.pid}, {endpoint.address}) {finding}. If it is "
            "gone, start the job again with the same --job_dir to go on."
        ) from error
    return response.content


def _was_sent(error: requests.RequestException) -> bool:
    """Returns whether the request may have arrived, because there was a connection."""
    cause = error.args[0] if error.args else None
    return isinstance(error, requests.ReadTimeout) or isinstance(cause, ProtocolError)


def _tell(reply: control.ChangeReply | control.SlotsReply) -> int:
    """Prints the decision of the master; returns the exit code."""
    print(reply.text, file=sys.stdout if reply.accepted else sys.stderr)
    return 0 if reply.accepted else 1
