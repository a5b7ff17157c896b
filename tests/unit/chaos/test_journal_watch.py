"""A launcher is killed when its own journal has grown, not that of the one before."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_elastic_keras.chaos.victims import JournalWatch, Victim
from hvd_elastic_keras.common import files

LIMIT_S = 60.0


@pytest.fixture
def launcher() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for its end."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_the_journal_of_a_killed_launcher_does_not_count(
    tmp_path: Path, launcher: subprocess.Popen[bytes]
) -> None:
    journal = tmp_path / files.JOURNAL
    journal.write_bytes(b"x" * 100)
    looked: list[int] = []

    def found() -> Victim:
        looked.append(journal.stat().st_size)
        return Victim(launcher.pid)

    watch = JournalWatch(tmp_path, 10, journal.stat().st_ino, found)
    try:
        assert watch.length() == 0
        new = tmp_path / "new"
        new.write_bytes(b"x" * 10)
        new.replace(journal)
        assert watch.length() == 10
        with journal.open("ab") as file:
            file.write(b"x")
        assert launcher.wait(LIMIT_S) == -signal.SIGKILL
    finally:
        watch.close()
    assert watch.killed == (journal.stat().st_ino, 11)
    assert looked == [11]


def test_a_launcher_that_is_not_found_is_looked_for_again(
    tmp_path: Path, launcher: subprocess.Popen[bytes]
) -> None:
    (tmp_path / files.JOURNAL).write_bytes(b"x")
    answers: list[Victim | None] = [Victim(launcher.pid), None]
    watch = JournalWatch(tmp_path, 0, 0, answers.pop)
    try:
        assert launcher.wait(LIMIT_S) == -signal.SIGKILL
    finally:
        watch.close()
    assert answers == []
