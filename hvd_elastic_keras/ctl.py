"""Command line for a running job (`python -m hvd_elastic_keras.ctl --help`).

python -m hvd_elastic_keras.ctl --job_dir=DIR status
python -m hvd_elastic_keras.ctl --job_dir=DIR add 2
python -m hvd_elastic_keras.ctl --job_dir=DIR remove 1
python -m hvd_elastic_keras.ctl --job_dir=DIR remove w3
python -m hvd_elastic_keras.ctl --job_dir=DIR revoke --slots=2 --deadline_s=30
python -m hvd_elastic_keras.ctl --job_dir=DIR grant --slots=2
python -m hvd_elastic_keras.ctl --job_dir=DIR audit
python -m hvd_elastic_keras.ctl --job_dir=DIR explain
python -m hvd_elastic_keras.ctl --job_dir=DIR dashboard
python -m hvd_elastic_keras.ctl --job_dir=DIR logs w1 --follow
python -m hvd_elastic_keras.ctl --job_dir=DIR stop
python -m hvd_elastic_keras.ctl list
python -m hvd_elastic_keras.ctl env
python -m hvd_elastic_keras.ctl manifests deploy
python -m hvd_elastic_keras.ctl read_only_token < job.token
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from hvd_elastic_keras.cli import control_job, job_directory, local_commands
from hvd_elastic_keras.cli.command_line import parser_of
from hvd_elastic_keras.common.errors import ElasticError

COMMANDS = (
    *("status", "add", "remove", "revoke", "grant", "audit", "explain", "dashboard"),
    *("logs", "stop", "list", "env", "manifests", "read_only_token"),
)
WITHOUT_JOB = {
    "list": "it shows the jobs below ./jobs",
    "manifests": "it writes files for jobs to come",
    "read_only_token": "it reads a token from standard input",
}
"""Commands that are not about one job directory, with what they are about."""


def _status(given: argparse.Namespace) -> int:
    return control_job.show_status(given.job_dir, as_json=given.json)


def _change_workers(given: argparse.Namespace) -> int:
    request = control_job.change_request(given.command, given.workers, given.command_id)
    return control_job.change_workers(given.job_dir, request)


def _change_slots(given: argparse.Namespace) -> int:
    deadline_s = getattr(given, "deadline_s", None)
    request = control_job.slots_request(
        given.command, given.slots, given.host, deadline_s, given.command_id
    )
    return control_job.change_slots(given.job_dir, request)


def _audit(given: argparse.Namespace) -> int:
    return control_job.audit(given.job_dir)


def _explain(given: argparse.Namespace) -> int:
    return control_job.explain(given.job_dir)


def _dashboard(given: argparse.Namespace) -> int:
    return control_job.show_dashboard(given.job_dir, read_only=given.read_only)


def _read_only_token(_: argparse.Namespace) -> int:
    return control_job.show_read_only_token(sys.stdin.read())


def _logs(given: argparse.Namespace) -> int:
    return local_commands.show_logs(given.job_dir, given.worker, follow=given.follow)


def _stop(given: argparse.Namespace) -> int:
    return local_commands.stop(given.job_dir)


def _list(given: argparse.Namespace) -> int:
    return local_commands.show_jobs()


def _env(given: argparse.Namespace) -> int:
    import hvd_elastic_keras.run  # noqa: F401 - defines all flags, which takes time

    return local_commands.show_environment(given.job_dir)


def _manifests(given: argparse.Namespace) -> int:
    words = local_commands.words_of(given.training)
    job = local_commands.OwnJob(given.name, given.image, words)
    return local_commands.write_manifests(given.directory, job)


def _common(parser: argparse.ArgumentParser, **default: object) -> None:
    """Flags that may stand before or after the command."""
    text = (
        "directory of the job: running, but for audit, explain, logs and status; default: that of "
        "./jobs to which a job has written last"
    )
    parser.add_argument("--job_dir", type=Path, help=text, **default)  # type: ignore[arg-type]
    text = "print the status as JSON, for programs"
    parser.add_argument("--json", action="store_true", help=text, **default)  # type: ignore[arg-type]


class _Commands:
    """The commands of a parser. Each has a function `run` that carries it out."""

    def __init__(self, top: argparse.ArgumentParser) -> None:
        self._commands = top.add_subparsers(
            dest="command", metavar=f"{{{','.join(COMMANDS)}}}", required=True
        )

    def add(self, name: str, text: str, run: object) -> argparse.ArgumentParser:
        command = self._commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        _common(command, default=argparse.SUPPRESS)
        command.set_defaults(run=run)
        return command

    def add_change(self, name: str, what: str, run: object) -> argparse.ArgumentParser:
        command = self.add(name, f"{name} {what}", run)
        text = "any text: the same command given again with the same id counts once"
        command.add_argument("--command_id", default="", help=text)
        return command


def parser() -> argparse.ArgumentParser:
    """The command line; each command has a function `run` that carries it out."""
    top = parser_of("hvd_elastic_keras.ctl", __doc__ or "")
    _common(top)
    commands = _Commands(top)
    commands.add("status", "show the workers and the slots of a job", _status)
    commands.add("audit", "judge anew what `run --audit` has written", _audit)
    text = "tell of all changes of a job: who, why, and what each has cost"
    commands.add("explain", text, _explain)
    _add_changes(commands)
    _add_views(commands)
    commands.add("stop", "stop a job after the current step, with a checkpoint", _stop)
    commands.add("list", "show the jobs below ./jobs", _list)
    text = "print what a report of a bug needs: versions, host, variables, the job; no secrets"
    commands.add("env", text, _env)
    _add_manifests(commands)
    text = "print the token that may only read a job, given its token on standard input"
    commands.add("read_only_token", text, _read_only_token)
    return top


def _add_changes(commands: _Commands) -> None:
    """Adds the commands that change the workers or the slots of a job."""
    for name, what in (("add", "N"), ("remove", "N|WORKER_ID")):
        change = commands.add_change(name, "workers", _change_workers)
        change.add_argument("workers", metavar=what)
    for name in ("revoke", "grant"):
        command = commands.add_change(name, "slots", _change_slots)
        command.add_argument("--slots", type=int, help=f"how many slots to {name}")
        text = "host of the slots; may be left out with one host"
        command.add_argument("--host", default="", help=text)
        if name == "revoke":
            text = "seconds after which revoked workers that have not left are killed"
            command.add_argument("--deadline_s", type=float, help=text)


def _add_views(commands: _Commands) -> None:
    """Adds the commands that show the dashboard and the logs."""
    text = "print the address of a page of a job; it holds the job's token"
    dashboard = commands.add("dashboard", text, _dashboard)
    text = "with a token that may see the job, and not change it"
    dashboard.add_argument("--read_only", action="store_true", help=text)
    logs = commands.add("logs", "print what a worker, or all of them, have printed", _logs)
    text = "such as w1; default: all, with the worker before each line"
    logs.add_argument("worker", nargs="?", default="", metavar="WORKER_ID", help=text)
    text = "go on with what is printed from now on, until the job ends"
    logs.add_argument("--follow", "-f", action="store_true", help=text)


def _add_manifests(commands: _Commands) -> None:
    text = "write the files for Kubernetes, Slurm and Grafana, for you to edit"
    written = commands.add("manifests", text, _manifests)
    text = "where to; default: deploy"
    written.add_argument("directory", nargs="?", type=Path, default=Path("deploy"), help=text)
    text = "begins the names of the job's objects in Kubernetes; give each job of a namespace one"
    written.add_argument("--name", default="", help=text + "; default: elastic")
    written.add_argument("--image", default="", help="the image with your training")
    text = "what is trained, in quotes: flags of run, or a script with its arguments"
    written.add_argument("--training", default="", help=text + "; default: --model=digits_cnn")


def main(arguments: Sequence[str] | None = None) -> None:
    """Parses the command line and carries out one command."""
    top = parser()
    given = top.parse_args(arguments)
    if given.job_dir is not None and given.command in WITHOUT_JOB:
        what = WITHOUT_JOB[given.command]
        top.error(f"--job_dir was given, which {given.command} does not take: {what}")
    if given.job_dir is None and given.command not in WITHOUT_JOB:
        given.job_dir = job_directory.newest()
        if given.job_dir is None and given.command != "env":
            top.error("--job_dir is missing, and there is no job in ./jobs. Give a job's directory")
        if given.job_dir is not None:
            print(f"job directory: {given.job_dir}", file=sys.stderr)
    if given.json and given.command != "status":
        top.error(f"--json was given, which {given.command} does not take")
    try:
        code = given.run(given)
        sys.stdout.flush()
    except ElasticError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the end
        code = 0
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    sys.exit(code)


if __name__ == "__main__":
    main()
