"""Decides whether a launcher goes on with the workers that another launcher has left behind.

A killed launcher leaves its workers training. The next launcher in that job directory takes them
over if it was started by the same command. Any other command is refused while they live.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from hvd_elastic_keras.cli.flags import find_model, settings
from hvd_elastic_keras.cli.flags.arguments import split_arguments
from hvd_elastic_keras.cli.job_request import JobRequest
from hvd_elastic_keras.common import control, files
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.launchers.base import LOCALHOST
from hvd_elastic_keras.launchers.kept_workers import WorkerRecord, end_kept_workers, kept_workers
from hvd_elastic_keras.master.http import certificate
from hvd_elastic_keras.master.journal import Entry, Journal, Term
from hvd_elastic_keras.master.machine.decisions import Decisions
from hvd_elastic_keras.observe.console import Console
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.options import RunOptions

RUN = "hvd_elastic_keras.run"
RESUME = "--resume"
OF_A_START = {"resume", "job_dir", "dry_run"}
"""Flags that say how a job is started again, and are not part of its command."""


def left_behind(request: JobRequest, term: Term, console: Console) -> control.Endpoint | None:
    """Returns the endpoint at which workers of the earlier launcher look for their master.

    Workers that cannot be taken over are ended. If this directory is a copy, the workers of the
    original directory go on as they are.

    Returns:
      The endpoint; None if there are no workers to take over.

    Raises:
      ConfigurationError: the workers train something else than the requested job.
    """
    job_dir = request.job_dir
    if term.original:
        _become_a_job_of_its_own(job_dir, term, console)
        return None
    alive = living(job_dir / files.WORKERS, console)
    endpoint = trusted_endpoint(job_dir)
    wanted = set[str]()
    if term.before and endpoint:
        wanted = _elsewhere(term.before) | (term.before.state.workers.keys() & alive.keys())
    if wanted and endpoint:
        _check_same_command(request, term)
        _check_same_token(request, endpoint)
    unwanted = {worker_id: kept for worker_id, kept in alive.items() if worker_id not in wanted}
    if unwanted:
        console.line(_told_of_ending(unwanted, term, endpoint))
        end_kept_workers(unwanted.values())
    if wanted:
        return endpoint
    term.begin_anew()
    return None


def _become_a_job_of_its_own(job_dir: Path, term: Term, console: Console) -> None:
    """Leaves the workers of the other directory alone, and gives this job a new identity."""
    console.line(
        f"{job_dir} is a copy of {term.original}, whose job and workers stay as they are. This job "
        "is another one, and goes on from the newest checkpoint that was copied, if there is any"
    )
    shutil.rmtree(job_dir / files.WORKERS, ignore_errors=True)
    files.remove_endpoint(job_dir)
    (job_dir / files.JOB_ID).unlink(missing_ok=True)
    term.begin_anew()


def living(notes: Path, console: Console) -> dict[str, WorkerRecord]:
    """Returns the living workers of this directory; prints the names of workers of another one."""
    found = kept_workers(notes)
    others = {w: kept for w, kept in found.items() if not kept.belongs_to(notes)}
    for worker_id, kept in others.items():
        if place := kept.noted_in:  # else its keeper has just ended, and so does the worker
            console.line(
                f"warning: {worker_id} (process {kept.pid}) is left alone: it was started for "
                f"another directory ({place}), from which {notes.parent} was copied or moved"
            )
    return {w: kept for w, kept in found.items() if w not in others}


def _told_of_ending(workers: Iterable[str], term: Term, endpoint: control.Endpoint | None) -> str:
    names, why = ", ".join(workers), ""
    if term.journal_problem:
        why = f"the journal {term.journal_problem}"
    elif endpoint is None and term.before:
        why = f"{files.MASTER} of that launcher, or its {files.CERTIFICATE}, cannot be used"
    if not why:
        return f"ending {names}, left here by a launcher that was killed"
    return (
        f"warning: {names}, left here by a launcher that was killed, cannot be taken over: {why}. "
        "They are ended, and what they have trained since the newest checkpoint is lost: the job "
        "goes on from that"
    )


def _elsewhere(before: Decisions) -> set[str]:
    """Returns workers that may still live, but not as processes of this launcher's host."""
    workers = before.state.workers.values()
    return {w.worker_id for w in workers if w.by_itself or w.host != LOCALHOST}


def trusted_endpoint(job_dir: Path) -> control.Endpoint | None:
    """Returns the endpoint of the earlier launcher.

    Returns None if the certificate that its workers trust is gone.
    """
    with contextlib.suppress(ConfigurationError):
        endpoint = files.read_endpoint(job_dir)
        if endpoint.fingerprint in ("", certificate.fingerprint_in(job_dir)):
            return endpoint
    return None


def what_was_asked_for(arguments: list[str]) -> tuple[str, ...]:
    """Returns the arguments of a launcher without its own --job_dir.

    >>> what_was_asked_for(["--job_dir=a", "x.py", "--job_dir=b"])
    ('x.py', '--job_dir=b')
    """
    flags, script = split_arguments(arguments)
    kept = [word for name, _, words in flags if name != "job_dir" for word in words]
    return (*kept, *script)


def _check_same_command(request: JobRequest, term: Term) -> None:
    before, job_dir = term.command_before, request.job_dir
    if before != request.command.words:
        raise ConfigurationError(
            f"In {job_dir}, workers of a killed launcher are still training. They were "
            f"started with: {shlex.join(before)}. This is another command. To go on with them, "
            f"use: python -m {RUN} {RESUME} --job_dir={job_dir}. Or give another --job_dir."
        )
    others = sorted(_before_script(term.sources_before) ^ _before_script(request.command.sources))
    if others:
        raise ConfigurationError(
            f"In {job_dir}, workers of a killed launcher are still training. They got "
            f"--{others[0]} from {_source(term.sources_before, others[0])}, and this command gets "
            f"it from {_source(request.command.sources, others[0])}: the command line alone counts "
            f"before the script. To go on with them, use: python -m {RUN} {RESUME} "
            f"--job_dir={job_dir}. "
            "Or give another --job_dir."
        )


def _source(sources: Mapping[str, str], name: str) -> str:
    """Returns the source of the value of a flag, for people."""
    source = sources.get(name, "")
    return f"the {source}" if source == settings.COMMAND_LINE else source


def _before_script(sources: Mapping[str, str]) -> set[str]:
    """Returns the options that count before the script: those typed on the command line."""
    typed = {name for name, source in sources.items() if source == settings.COMMAND_LINE}
    return typed & set(RunOptions.__struct_fields__)


def _check_same_token(request: JobRequest, before: control.Endpoint) -> None:
    if request.master.token not in ("", before.token):
        raise ConfigurationError(
            f"In {request.job_dir}, workers of a killed launcher are still training, "
            "and --token_file holds another token than the one that they know. Give that one, or "
            "another --job_dir."
        )


def sources_handed_on() -> dict[str, str]:
    """Returns, by flag, the sources of the values from which `--resume` has made this command.

    Only this process gets them, and only once.
    """
    told = env.variables_named([env.RESUMED]).get(env.RESUMED, "{}")
    env.set_variables({env.RESUMED: None})
    sources: dict[str, str] = json.loads(told)
    return sources


def start_again(job_dir: Path | None, given: settings.Settings) -> NoReturn:
    """Replaces this process by the command that started the job of a directory last (`--resume`).

    Args:
      given: this command. Its typed flags count before those of the earlier command.

    Raises:
      ConfigurationError: no job was ever started there, or this command names another model or
        script, or a file of flags.
    """
    if job_dir is None:
        raise ConfigurationError(f"{RESUME} was given without --job_dir. Say which job is meant.")
    if not job_dir.is_dir():
        raise ConfigurationError(f"{RESUME} was given, but there is no directory {job_dir}.")
    journal = Journal(job_dir / files.JOURNAL)
    last = journal.last
    if last is None or not Path(last.directory).is_dir():
        problem = f" (its journal {journal.problem})" if journal.problem else ""
        raise ConfigurationError(
            f"{RESUME} was given, but {job_dir} does not say with which command its job was "
            f"started{problem}. Give that command with this --job_dir."
        )
    in_files = {s for s in given.sources.values() if s.endswith(settings.SUFFIX)}
    if in_files and settings.CONFIG not in settings.from_environment():
        raise ConfigurationError(
            f"--config={in_files.pop()} was given together with {RESUME}, which takes all values "
            "from the job. Give those that shall differ as flags."
        )
    typed = {n for n, source in given.sources.items() if source == settings.COMMAND_LINE}
    changed, words = _changed(last, given.words, typed)
    command = [sys.executable, "-m", RUN, f"--job_dir={job_dir.resolve()}"]
    command += ["--dry_run"] if "dry_run" in typed else []
    command += words
    # The words already hold the values of the earlier environment; today's may differ.
    env.set_variables(dict.fromkeys(env.variables_beginning(env.RUN_PREFIX)))
    kept = last.sources.keys() - changed - {"job_dir"}
    sources = {name: last.sources[name] for name in kept}
    env.set_variables({env.RESUMED: json.dumps(sources)})
    os.chdir(last.directory)
    os.execv(sys.executable, command)


def _changed(last: Entry, words: list[str], typed: set[str]) -> tuple[set[str], list[str]]:
    """Puts the typed flags of a command into the earlier one.

    Returns:
      The flags that differ from the earlier command, and all words.

    Raises:
      ConfigurationError: the command names another model or script.
    """
    flags, script = split_arguments(words)
    before, script_before = split_arguments(last.command)
    now = [
        (name, value, used)
        for name, value, used in flags
        if settings.flag_of(name) in typed - OF_A_START
    ]
    known = {(name, value) for name, value, _ in before}
    if not script_before and "model" not in {name for name, _ in known}:
        known.add(("model", find_model.DEFAULT_MODEL))
    new = [(name, value, used) for name, value, used in now if (name, value) not in known]
    changed = {settings.flag_of(name) for name, _, _ in new}
    others = [
        " ".join(used) for name, _, used in new if settings.flag_of(name) in ("model", "module")
    ]
    if script and (_place(script, Path.cwd()) != _place(script_before, Path(last.directory))):
        others.append(shlex.join(script))
    if others:
        raise ConfigurationError(
            f"{' '.join(others)} was given together with {RESUME}, which starts the job again with "
            f"its own command: {shlex.join(last.command)}. Leave it out. To start another command "
            f"in this directory, give it with --job_dir and without {RESUME}."
        )
    kept = [
        word for name, _, used in before if settings.flag_of(name) not in changed for word in used
    ]
    more = [word for _, _, used in new for word in used]
    return changed, [*kept, *more, *script_before]


def _place(script: Sequence[str], directory: Path) -> tuple[str, ...]:
    """Returns a script, as a path that holds in any directory, and its arguments."""
    name, *arguments = script[1:] if script[:1] == ["--"] else script or ("",)
    path = directory / name
    return (str(path.resolve()) if path.is_file() else name, *arguments)
