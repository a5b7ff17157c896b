"""Workers of this machine: real processes, also ones whose launcher was killed."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from hvd_elastic_keras.cli.take_over import living
from hvd_elastic_keras.launchers.base import LOCALHOST, WorkerExit
from hvd_elastic_keras.launchers.kept_workers import KEEPER, end_kept_workers, kept_workers
from hvd_elastic_keras.launchers.local import LONGEST_LINE, LocalLauncher
from hvd_elastic_keras.observe.console import Console
from hvd_elastic_keras.settings import env

LIMIT_S = 100.0
LONG_LINE = 20_000_000
REPOSITORY = Path(__file__).resolve().parents[3]
from tests.harness.job import lives


class Watched:
    """A launcher in `directory`, and what it was told of its workers."""

    def __init__(self, directory: Path, command: Sequence[str]) -> None:
        self.lines: list[tuple[str, str]] = []
        self.exits: list[WorkerExit] = []
        (directory / "logs").mkdir(exist_ok=True)
        self.launcher = LocalLauncher(
            lambda _: command,
            directory / "logs",
            directory / "workers",
            lambda worker_id: env.WorkerEnvironment("host:1", "token", worker_id, str(directory)),
            lambda worker_id, line: self.lines.append((worker_id, line)),
            variables=env.worker_variables(1, keeps_threads=False),
        )

    async def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, (self.lines, self.exits)
            await asyncio.sleep(0.005)


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9), ("kill -TERM $$", -15)]
)
def test_the_end_of_a_worker_is_reported_with_its_exit_code(
    tmp_path: Path, script: str, code: int
) -> None:
    async def run() -> None:
        watched = Watched(tmp_path, shell(script))
        watched.launcher.launch("w0", LOCALHOST, watched.exits.append)
        await watched.until(lambda: watched.exits)
        assert watched.exits == [WorkerExit("w0", code)]
        assert watched.launcher.running() == []

    asyncio.run(run())


def test_what_a_worker_prints_is_shown_and_stands_in_its_log_with_its_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def run() -> None:
        script = "echo one; echo two >&2; echo $TMPDIR; echo hidden > $TMPDIR/file; printf end"
        watched = Watched(tmp_path, shell(script))
        watched.launcher.launch("w3", LOCALHOST, watched.exits.append)
        await watched.until(lambda: watched.exits and len(watched.lines) == 3)
        (_, one), (_, scratch), (_, end) = watched.lines
        assert (one, end) == ("one", "end")
        assert Path(scratch).parent == tmp_path
        assert not Path(scratch).exists()
        log = (tmp_path / "logs" / "w3.log").read_text().split()
        assert sorted(log) == sorted(["one", "two", scratch, "end"])

    asyncio.run(run())


def test_of_a_line_without_an_end_the_launcher_keeps_the_beginning_and_the_log_all(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        script = f"head -c {LONG_LINE} /dev/zero | tr '\\0' x; echo; echo after; printf end"
        watched = Watched(tmp_path, shell(script))
        watched.launcher.launch("w0", LOCALHOST, watched.exits.append)
        await watched.until(lambda: watched.exits and len(watched.lines) == 3)
        (_, long), (_, after), (_, end) = watched.lines
        assert len(long) < LONGEST_LINE + 100
        assert long.endswith("(cut after 65,536 characters; the whole line is in the worker's log)")
        assert (after, end) == ("after", "end")

    asyncio.run(run())
    assert (tmp_path / "logs" / "w0.log").stat().st_size == LONG_LINE + len("\nafter\nend")


DAEMONS = """
setsid sh -c 'setsid sleep 1000 & echo $! $$ > {fifo}; wait' &
read daemons < {fifo}
echo $daemons
"""


@pytest.mark.parametrize("end", ["exit 0", "kill -9 $$", "kill -9 0"])
def test_what_a_worker_has_started_ends_with_it_also_in_sessions_of_its_own(
    tmp_path: Path, end: str
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    async def run() -> list[psutil.Process]:
        watched = Watched(tmp_path, shell(DAEMONS.format(fifo=fifo) + end))
        watched.launcher.launch("w0", LOCALHOST, watched.exits.append)
        await watched.until(lambda: watched.exits and watched.lines)
        pids = watched.lines[0][1].split()
        return [psutil.Process(int(pid)) for pid in pids if psutil.pid_exists(int(pid))]

    left = asyncio.run(run())
    for process in left:
        process.kill()
    assert left == []


def test_an_orphan_that_ends_before_its_worker_does_not_stay_as_a_zombie(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    async def run() -> None:
        script = f"sh -c 'sh -c exit & echo $!'; read line < {gate}; exit 3"
        watched = Watched(tmp_path, shell(script))
        watched.launcher.launch("w0", LOCALHOST, watched.exits.append)
        await watched.until(lambda: watched.lines)
        orphan = int(watched.lines[0][1])
        await watched.until(lambda: not psutil.pid_exists(orphan))
        gate.write_text("end\n")
        await watched.until(lambda: watched.exits)
        assert watched.exits == [WorkerExit("w0", 3)]

    asyncio.run(run())


@pytest.mark.parametrize("again", [True, False])
def test_a_launcher_that_is_killed_before_a_worker_has_a_keeper_leaves_nothing_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    temporary = tmp_path / "tmp"
    (temporary / f"{env.SCRATCH_PREFIX}w0-another-job").mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))

    async def run() -> None:
        killed, watched = Watched(tmp_path, []), Watched(tmp_path, shell("exit 0"))
        monkeypatch.setattr(killed.launcher, "_start_keeper", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            killed.launcher.launch("w0", LOCALHOST, killed.exits.append)
        assert len(list(temporary.iterdir())) == 2
        if again:
            watched.launcher.launch("w0", LOCALHOST, watched.exits.append)
            await watched.until(lambda: watched.exits)
        else:
            watched.launcher.close()

    asyncio.run(run())
    assert [path.name for path in temporary.iterdir()] == ["hvd_elastic-w0-another-job"]


def test_directories_that_were_removed_take_no_exit_code_with_them(tmp_path: Path) -> None:
    async def run() -> None:
        watched = Watched(tmp_path, shell("echo started; sleep 1000 & wait"))
        watched.launcher.launch("w0", LOCALHOST, watched.exits.append)
        await watched.until(lambda: watched.lines)
        for name in ("logs", "workers"):
            shutil.rmtree(tmp_path / name)
        watched.launcher.launch("w1", LOCALHOST, watched.exits.append)
        for worker_id in ("w0", "w1"):
            watched.launcher.kill(worker_id)
        await watched.until(lambda: len(watched.exits) == 2)
        killed = [WorkerExit(worker_id, -signal.SIGKILL) for worker_id in ("w0", "w1")]
        assert sorted(watched.exits, key=lambda e: e.worker_id) == killed

    asyncio.run(run())


def test_a_program_that_cannot_be_started_is_an_error(tmp_path: Path) -> None:
    async def run() -> None:
        watched = Watched(tmp_path, ["/no/such/program"])
        with pytest.raises(OSError, match="No such file or directory"):
            watched.launcher.launch("w0", LOCALHOST, watched.exits.append)
        assert watched.launcher.running() == []

    asyncio.run(run())


def test_a_worker_is_killed_with_what_it_has_started(tmp_path: Path) -> None:
    async def run() -> None:
        watched = Watched(tmp_path, shell("sleep 1000 & echo $!; wait"))
        watched.launcher.launch("w0", LOCALHOST, watched.exits.append)
        await watched.until(lambda: watched.lines)
        child = psutil.Process(int(watched.lines[0][1]))
        watched.launcher.kill("w0")
        await watched.until(lambda: watched.exits)
        assert watched.exits == [WorkerExit("w0", -signal.SIGKILL)]
        psutil.wait_procs([child], timeout=LIMIT_S)
        assert not lives(child)

    asyncio.run(run())


def test_a_worker_does_not_outlive_its_keeper(tmp_path: Path) -> None:
    async def run() -> None:
        watched = Watched(tmp_path, shell("echo here; sleep 1000"))
        process = psutil.Process(watched.launcher.launch("w0", LOCALHOST, watched.exits.append).pid)
        await watched.until(lambda: watched.lines)
        (kept,) = kept_workers(tmp_path / "workers").values()
        os.kill(kept.keeper, signal.SIGKILL)
        await watched.until(lambda: watched.exits)
        words = "was ended together with its parent process (keeper.py), which"
        assert watched.exits == [WorkerExit("w0", None, f"{words} was killed by SIGKILL")]
        psutil.wait_procs([process], timeout=LIMIT_S)
        assert not lives(process)

    asyncio.run(run())


# --- the launcher is killed --------------------------------------------------------------

KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.unit.launchers.test_local_workers import LOCALHOST, Watched, shell

async def run():
    watched = Watched(Path(sys.argv[1]), shell(sys.argv[2]))
    watched.launcher.launch("w0", LOCALHOST, watched.exits.append)
    await watched.until(lambda: watched.lines)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(run())
"""


def launch_and_be_killed(directory: Path, script: str) -> None:
    """In another process, which is killed as soon as the worker has printed a line."""
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(directory), script],
        cwd=REPOSITORY,
        timeout=LIMIT_S,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL


def test_another_launcher_adopts_a_worker_with_its_output_and_its_end(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    # Held open from the first line to the last. A writer that closes after each line may do so when
    # the worker waits for the next one already, which then is an empty one: the end of the file.
    lines = os.open(gate, os.O_RDWR)
    # What is printed while nobody listens does no harm to the worker.
    read = f"read line < {gate}"
    script = f"echo first; {read}; echo unheard; {read}; echo $line; exit 5"

    async def run() -> None:
        launch_and_be_killed(tmp_path, script)
        os.write(lines, b"go on\n")
        log = tmp_path / "logs" / "w0.log"
        watched = Watched(tmp_path, shell("exit 1"))
        await watched.until(lambda: "unheard" in log.read_text())
        assert list(kept_workers(tmp_path / "workers")) == ["w0"]
        adopted = watched.launcher.adopt("w0", watched.exits.append)
        assert adopted is not None
        assert adopted.pid == json.loads((tmp_path / "workers" / "w0.json").read_text())["pid"]
        os.write(lines, b"last\n")
        await watched.until(lambda: watched.exits and watched.lines)
        assert watched.lines == [("w0", "last")]
        assert watched.exits == [WorkerExit("w0", 5)]
        assert log.read_text() == "first\nunheard\nlast\n"

    try:
        asyncio.run(run())
    finally:
        os.close(lines)


def keep_for_a_killed_launcher(directory: Path, *, scratch_is_there: bool) -> int:
    """Runs a keeper whose launcher has gone before it could say which process the worker is."""
    scratch, record = directory / "scratch", directory / "workers" / "w0.json"
    (scratch if scratch_is_there else directory).mkdir(exist_ok=True)
    record.parent.mkdir()
    reader, writer = os.pipe()
    os.close(reader)
    command = [*KEEPER, str(record), str(directory / "w0.log"), str(scratch)]
    try:
        return subprocess.run(
            [*command, *shell("echo here; exit 5")],
            stdout=writer,
            stderr=subprocess.DEVNULL,
            timeout=LIMIT_S,
            check=False,
        ).returncode
    finally:
        os.close(writer)


def test_a_worker_whose_launcher_is_killed_before_it_knows_of_it_is_kept(tmp_path: Path) -> None:
    assert keep_for_a_killed_launcher(tmp_path, scratch_is_there=True) == 0
    assert json.loads((tmp_path / "workers" / "w0.json").read_text())["exit"] == 5
    assert (tmp_path / "w0.log").read_text() == "here\n"
    assert not (tmp_path / "scratch").exists()


def test_a_keeper_that_comes_after_the_next_launcher_starts_nothing(tmp_path: Path) -> None:
    assert keep_for_a_killed_launcher(tmp_path, scratch_is_there=False) != 0
    assert not (tmp_path / "w0.log").exists()


def test_the_exit_code_of_a_worker_that_ended_without_a_launcher_is_known(tmp_path: Path) -> None:
    async def run() -> None:
        launch_and_be_killed(tmp_path, "echo first; exit 5")
        watched = Watched(tmp_path, shell("exit 1"))
        await watched.until(lambda: not kept_workers(tmp_path / "workers"))
        assert watched.launcher.adopt("w0", watched.exits.append) is not None
        await watched.until(lambda: watched.exits)
        assert watched.exits == [WorkerExit("w0", 5)]

    asyncio.run(run())


@pytest.mark.parametrize("adopted", [True, False])
def test_of_a_worker_that_was_left_behind_and_whose_keeper_is_killed_it_is_said(
    tmp_path: Path, adopted: bool
) -> None:
    async def run() -> None:
        launch_and_be_killed(tmp_path, "echo first; sleep 1000")
        (kept,) = kept_workers(tmp_path / "workers").values()
        watched = Watched(tmp_path, shell("exit 1"))
        if adopted:
            watched.launcher.adopt("w0", watched.exits.append)
        os.kill(kept.keeper, signal.SIGKILL)
        if not adopted:
            await watched.until(lambda: not kept.is_kept)
            watched.launcher.adopt("w0", watched.exits.append)
        await watched.until(lambda: watched.exits)
        (ended,) = watched.exits
        assert ended.return_code is None
        assert ended.reason.startswith(
            "was ended together with its parent process (keeper.py), which is gone"
            if adopted
            else "ended while no launcher ran, and so did its parent process (keeper.py)"
        )
        kept.kill()

    asyncio.run(run())


def test_a_worker_that_was_never_started_cannot_be_adopted(tmp_path: Path) -> None:
    async def run() -> None:
        watched = Watched(tmp_path, shell("exit 1"))
        assert watched.launcher.adopt("w0", watched.exits.append) is None

    asyncio.run(run())


def test_workers_that_nobody_adopts_can_be_ended(tmp_path: Path) -> None:
    launch_and_be_killed(tmp_path, "echo first; sleep 1000")
    living = kept_workers(tmp_path / "workers")
    assert list(living) == ["w0"]
    end_kept_workers(living.values())
    assert kept_workers(tmp_path / "workers") == {}


def test_workers_of_the_directory_that_was_copied_are_neither_adopted_nor_killed(
    tmp_path: Path,
) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.mkdir()

    async def run() -> None:
        watched = Watched(original, shell("echo started; sleep 1000 & wait"))
        watched.launcher.launch("w0", LOCALHOST, watched.exits.append)
        await watched.until(lambda: watched.lines)
        shutil.copytree(original, copy)
        (kept,) = kept_workers(copy / "workers").values()
        assert kept.is_kept
        assert kept.belongs_to(original / "workers")
        assert not kept.belongs_to(copy / "workers")
        (tmp_path / "link").symlink_to(original)
        assert kept.belongs_to(tmp_path / "link" / "workers"), "the same by another name"
        another = Watched(copy, [])
        another.launcher.adopt("w0", another.exits.append)
        assert another.launcher.running() == []
        assert kept.is_kept
        watched.launcher.kill("w0")
        await watched.until(lambda: watched.exits)
        assert kept.noted_in is None

    asyncio.run(run())


def test_a_worker_of_a_directory_that_was_moved_is_named_and_left_alone(tmp_path: Path) -> None:
    there, moved, said = tmp_path / "there", tmp_path / "moved", io.StringIO()
    there.mkdir()

    async def run() -> None:
        watched = Watched(there, shell("echo started; sleep 1000 & wait"))
        watched.launcher.launch("w0", LOCALHOST, watched.exits.append)
        await watched.until(lambda: watched.lines)
        assert living(there / "workers", Console(said)).keys() == {"w0"}
        assert said.getvalue() == ""
        there.rename(moved)
        assert living(moved / "workers", Console(said)) == {}
        assert "w0 (process " in said.getvalue()
        assert "is left alone: it was started for another directory" in said.getvalue()
        watched.launcher.kill("w0")
        await watched.until(lambda: watched.exits)

    asyncio.run(run())
