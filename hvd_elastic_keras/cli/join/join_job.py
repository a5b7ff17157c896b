"""`run --join`: one worker of a job whose master runs elsewhere, from its start to its end."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import signal
import socket
import sys
import time
from pathlib import Path
from types import FrameType

import requests
import tenacity

from hvd_elastic_keras.cli import job_directory, source_files
from hvd_elastic_keras.cli.checks import machine
from hvd_elastic_keras.cli.job_request import worker_command
from hvd_elastic_keras.cli.join.joined_process import JoinedProcess
from hvd_elastic_keras.common import control, files, host_port, messages, protocol, versions
from hvd_elastic_keras.common.errors import ConfigurationError, ElasticError, MasterUnreachableError
from hvd_elastic_keras.common.master_session import session_of, url_of
from hvd_elastic_keras.observe import output
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.job_options import JobOptions
from hvd_elastic_keras.settings.job_spec import JobSpec

RETRY_S = 1.0
TELL_END_WITHIN_S = 10.0
"""Seconds to keep telling the end of a worker to a master, which may have ended just before."""
REQUEST_TIMEOUT_S = 10.0
TAKEN_CODES = (control.ENDED_WELL, control.LEFT, control.HOPELESS)


@dataclasses.dataclass(frozen=True)
class JoinWish:
    """The settings on the command line of a joiner.

    Attributes:
      where: HOST:PORT of the master, or the job's directory.
      token: token of the job, or the content of its `master.json`; empty if `where` is the
        directory.
      host_name: name of this host in the job; empty: the name that the system has.
      worker_id: id of the worker that the launcher has announced; empty for an additional worker.
      read_by_launcher: whether a launcher has started this process, given the token on standard
        input, and keeps the output of the worker.
      job_dir: directory for logs, checkpoints and results if this host does not see the job's.
    """

    where: str
    token: str
    host_name: str = ""
    worker_id: str = ""
    job_dir: str = ""
    network_interface: str = ""
    read_by_launcher: bool = False
    join_timeout_s: float = 300.0
    leave_exit_code: int = control.LEFT


class Master:
    """Sends the requests of a joiner to the master."""

    def __init__(self, endpoint: control.Endpoint) -> None:
        self.endpoint = endpoint
        self._session = session_of(endpoint.token, endpoint.fingerprint)

    def job(self, within_s: float) -> control.JobDescription:
        """Asks for the description of the job."""
        body = self._ask("GET", "job", None, within_s)
        return messages.decode(body, control.JobDescription)

    def join(self, request: control.JoinRequest, within_s: float) -> control.JoinReply:
        """Asks for a place in the job."""
        body = self._ask("POST", "join", messages.encode(request), within_s)
        return messages.decode(body, control.JoinReply)

    def exited(self, request: control.ExitRequest) -> control.ExitReply:
        """Reports the end of a worker; the reply says what it means for the job."""
        body = self._ask("POST", "exit", messages.encode(request), TELL_END_WITHIN_S)
        return messages.decode(body, control.ExitReply)

    def _ask(self, method: str, path: str, body: bytes | None, within_s: float) -> bytes:
        """Sends a request, and repeats it while nobody answers.

        Raises:
          ConfigurationError: the token is wrong, or the program that answers is no master.
          MasterUnreachableError: nobody answered for `within_s`.
        """
        repeated = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type((requests.ConnectionError, requests.Timeout)),
            wait=tenacity.wait_fixed(RETRY_S),
            stop=tenacity.stop_after_delay(within_s),
            reraise=True,
        )
        address, fingerprint = self.endpoint.address, self.endpoint.fingerprint
        url = url_of(address, fingerprint, path)
        try:
            answer = repeated(
                self._session.request, method, url, data=body, timeout=REQUEST_TIMEOUT_S
            )
        except requests.RequestException as error:
            raise MasterUnreachableError(
                f"No master has answered at {address} for {within_s:.0f} s: {error}. Is the job "
                "running, is its --bind an address that this host can reach, and does no firewall "
                "stand between?"
            ) from error
        if answer.status_code == requests.codes.unauthorized:
            raise ConfigurationError(
                f"The master at {address} refuses the token. Give that of this job: `token` in "
                "master.json of its directory."
            )
        if not answer.ok:
            raise ConfigurationError(
                f"{address} answered {path} with {answer.status_code}: {answer.text[:200]}. Is it "
                "a master of this version?"
            )
        return answer.content


def join_job(wish: JoinWish) -> int:
    """Starts a worker, waits for its end, and returns the exit code of the command.

    Raises:
      ElasticError: there is no such job, or this host does not fit the job. Nothing was started.
    """
    # Else, as the first process of a container, it would ignore SIGTERM until there is a worker.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(wish.leave_exit_code))
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _hung_up)
    return Joiner(wish).run()


class Joiner:
    """Runs one worker after the other, until a worker ends that the job had not given up."""

    def __init__(self, wish: JoinWish) -> None:
        self._wish = wish
        self._endpoint = endpoint_of(wish)
        self._master = Master(self._endpoint)
        self._job = job = self._master.job(wish.join_timeout_s)
        versions.check_versions(versions.installed(), job.versions)
        self._process = JoinedProcess(
            _directory_with_sources(job), read_by_launcher=wish.read_by_launcher
        )
        self._host = wish.host_name or socket.gethostname()
        self._job_dir = _job_dir(wish, job)

    def run(self) -> int:
        """Returns the exit code of the command."""
        while True:
            reply = self._join()
            if reply.over:
                _say("the job has ended")
                return control.ENDED_WELL
            code = self._work(reply)
            outcome = self._outcome(reply.worker_id, code)
            if outcome is not control.Outcome.EXPELLED or not self._may_join_again:
                _say(f"{reply.worker_id} has ended: {outcome.value}")
                return _exit_code(outcome, code, self._wish.leave_exit_code)
            _say(f"the job has given {reply.worker_id} up: joining again")

    @property
    def _may_join_again(self) -> bool:
        return not (self._wish.worker_id or self._process.asked_to_end)

    def _join(self) -> control.JoinReply:
        request = control.JoinRequest(
            key=secrets.token_hex(16),
            host=self._host,
            worker_id=self._wish.worker_id,
            sees_job_dir=job_directory.is_of(self._job_dir, self._job.job_id),
        )
        reply = self._master.join(request, self._wish.join_timeout_s)
        if reply.refused:
            raise ConfigurationError(f"The master has no place for this worker: {reply.refused}")
        return reply

    def _work(self, reply: control.JoinReply) -> int:
        worker_id, address = reply.worker_id, self._endpoint.address
        _say(f"joins {self._job.name} at {address} as {worker_id} on {self._host}")
        log = self._job_dir / files.LOGS / f"{worker_id}.log"
        output.go_on_in(log)
        environment = self._environment(reply)
        return self._process.run(worker_command(self._job.script), environment, log, self._endpoint)

    def _environment(self, reply: control.JoinReply) -> dict[str, str]:
        asked = JobOptions.decode(self._job.options)
        options = asked.with_script()
        given = env.WorkerEnvironment(
            master=self._endpoint.address,
            token=self._endpoint.token,
            fingerprint=self._endpoint.fingerprint,
            worker_id=reply.worker_id,
            job_dir=str(self._job_dir),
            joined=True,
            slot=reply.slot,
            keeper_pid=os.getpid(),
            iface=self._wish.network_interface,
            hostname=self._host,
            master_timeout_s=self._job.master_timeout_s,
            options=asked,
            job_id=self._job.job_id,
        ).to_variables()
        cores = machine.processors()
        count = cores // reply.workers_here
        if options.deterministic:
            count = options.deterministic_threads
        shared = env.worker_variables(max(1, count), keeps_threads=options.deterministic)
        return {**shared, **given}

    def _outcome(self, worker_id: str, code: int) -> control.Outcome:
        tail = self._process.log_tail if code else ""
        told = control.ExitRequest(worker_id=worker_id, return_code=code, log_tail=tail)
        try:
            return self._master.exited(told).outcome
        except ElasticError:
            # The job has ended, or there is no master at present.
            return self._outcome_for_itself(code)

    def _outcome_for_itself(self, code: int) -> control.Outcome:
        if self._process.stopped:
            finished = self._process.stopped == protocol.FINISHED
            return control.Outcome.FINISHED if finished else control.Outcome.LEFT
        if code:
            return control.Outcome.FAILED
        return control.Outcome.LEFT if self._process.asked_to_end else control.Outcome.FINISHED


def _is_address(where: str) -> bool:
    """Returns whether `where` is host:port; else it is the job's directory."""
    try:
        return bool(host_port.split(where))
    except ValueError:
        if where.count(":") > 1 and os.sep not in where and not Path(where).exists():
            raise ConfigurationError(
                f"--join={where} was given, expected HOST:PORT or the job's directory. An IPv6 "
                "address stands in brackets: --join=[fd00::7]:7000."
            ) from None
        return False


def endpoint_of(wish: JoinWish) -> control.Endpoint:
    """Returns the address and token of the master.

    Raises:
      ConfigurationError: address or token are missing or malformed.
    """
    if not _is_address(wish.where) or Path(wish.where).is_dir():
        # The job may not have been started yet: wait for it.
        repeated = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(ConfigurationError),
            wait=tenacity.wait_fixed(RETRY_S),
            stop=tenacity.stop_after_delay(wish.join_timeout_s),
            reraise=True,
        )
        return repeated(files.read_endpoint, Path(wish.where))
    if not wish.token.strip():
        raise ConfigurationError(
            f"--join={wish.where} was given without a token. Give --token_file=FILE with the token "
            "of the job (`token` in master.json of its directory), or - for standard input."
        )
    fields = _fields_of(wish.token)
    return control.Endpoint(
        version=messages.PROTOCOL_VERSION,
        address=wish.where,
        token=fields["token"],
        pid=0,
        fingerprint=fields.get("fingerprint", ""),
    )


def _fields_of(token: str) -> dict[str, str]:
    """Returns the token, and the fingerprint of the certificate if it is given, too."""
    with contextlib.suppress(ValueError):
        fields = json.loads(token)
        if isinstance(fields, dict) and isinstance(fields.get("token"), str):
            return fields
    words = token.split()
    return dict(zip(("token", "fingerprint"), words, strict=False))


def _directory_with_sources(job: control.JobDescription) -> Path:
    """Returns the directory of the script or model: the current one, or the launcher's path.

    Raises:
      ConfigurationError: neither directory has the same files as the launcher.
    """
    model = JobSpec.decode(job.job, "what the master has sent").model if job.job else ""
    found: dict[Path, list[str]] = {}
    for place in dict.fromkeys([Path.cwd(), Path(job.directory)]):
        if place.is_dir():
            base = source_files.base_of(job.script, model, place)
            found[place] = source_files.differences(job.sources, base)
            if not found[place]:
                return place
    names = ", ".join(sorted(found.values(), key=len)[0])
    raise ConfigurationError(
        f"This host does not have the source that the job trains: {names} missing or different "
        f"in {' and in '.join(map(str, found))}. Bring the same files here, and start this command "
        "in their directory."
    )


def _job_dir(wish: JoinWish, job: control.JobDescription) -> Path:
    """Returns the job's directory if this host sees it, else an own one with the worker's files."""
    for seen in (Path(wish.where), Path(job.job_dir)):
        if job_directory.is_of(seen, job.job_id):
            return seen.resolve()
    own = Path(wish.job_dir or f"jobs/{job.name}-{job.job_id[:8]}").resolve()
    (own / files.LOGS).mkdir(parents=True, exist_ok=True)
    if job.job:
        files.write_secret(own / files.JOB, job.job.encode())
    return own


def _exit_code(outcome: control.Outcome, code: int, leave_exit_code: int) -> int:
    match outcome:
        case control.Outcome.FINISHED:
            return control.ENDED_WELL
        case control.Outcome.LEFT | control.Outcome.EXPELLED:
            return leave_exit_code
        case control.Outcome.REFUSED:
            return control.HOPELESS
        case control.Outcome.FAILED:
            failed = 128 - code if code < 0 else code
            return control.FAILED if failed in (*TAKEN_CODES, leave_exit_code) else failed


def _hung_up(number: int, frame: FrameType | None) -> None:
    """Keeps the worker running when a terminal or connection is lost, as `nohup` does."""
    signal.signal(signal.SIGHUP, lambda *_: None)  # a shell may send SIGHUP, too
    _say(
        "got SIGHUP (a closed terminal or a lost connection): going on; what cannot be shown any "
        f"more is in the worker's log. To leave the job: kill {os.getpid()}"
    )


def _say(text: str) -> None:
    stamp = time.strftime("%H:%M:%S")
    print(f"[join {stamp}] {text}", file=sys.stderr, flush=True)
