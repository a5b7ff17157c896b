"""Command line for a running job (`python -m hvd_elastic_keras.ctl --help`).

python -m hvd_elastic_keras.ctl --job_dir=DIR status
python -m hvd_elastic_keras.ctl --job_dir=DIR add 2
python -m hvd_elastic_keras.ctl --job_dir=DIR remove 1
python -m hvd_elastic_keras.ctl --job_dir=DIR remove w3
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import requests
from absl import app, flags

from hvd_elastic_keras import command_line, files, protocol
from hvd_elastic_keras.errors import ConfigurationError, ElasticError, MasterUnreachableError

REQUEST_TIMEOUT_S = 10.0
COMMANDS = "status, add N, remove N, remove WORKER_ID"


def define_flags() -> None:
    """Not at import: `run` has a flag of the same name."""
    flags.DEFINE_string("job_dir", None, "Directory of the running job.")
    flags.DEFINE_bool("json", False, "Print the status as JSON, for programs.")


def status_table(status: protocol.JobStatus) -> str:
    """The status for people."""
    detail = f" ({status.detail})" if status.detail else ""
    training = f"training {status.training}  " if status.training > 1 else ""
    head = (
        f"{status.phase}{detail}  {training}round {status.round}  step {status.step}  "
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
    if command == "remove" and argument and not argument.lstrip("-").isnumeric():
        return protocol.ChangeRequest(remove_worker_id=argument)
    expected = "a number of at least 1" + (" or a worker id" if command == "remove" else "")
    raise ConfigurationError(f"{command} {argument} was given, expected {expected}.")


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
        if not response.ok:
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
    if job_dir is None:
        raise ConfigurationError("--job_dir is missing. Give the directory of a running job.")
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
        reply = protocol.decode(_call(endpoint, "POST", "workers", body), protocol.ChangeReply)
        print(reply.text, file=sys.stdout if reply.accepted else sys.stderr)
        return 0 if reply.accepted else 1
    raise ConfigurationError(f"{' '.join(arguments[1:])!r} was given, expected one of: {COMMANDS}.")


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
