"""Locks of files, and who holds them."""

from __future__ import annotations

import contextlib
import getpass
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_elastic_keras.common import locks
from hvd_elastic_keras.common.locks import LockHeldError

STRANGER = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(descriptor, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def held_by_a_stranger(path: Path) -> Iterator[int]:
    """With a lock that needs no more than the right to read; gives the stranger's process id."""
    with subprocess.Popen(
        [sys.executable, "-c", STRANGER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as stranger:
        try:
            assert stranger.stdout is not None
            assert stranger.stdout.readline() == "held\n"
            yield stranger.pid
        finally:
            stranger.kill()


def test_a_lock_file_belongs_to_its_owner_alone_also_one_that_others_could_read(
    tmp_path: Path,
) -> None:
    old, new = tmp_path / "old.lock", tmp_path / "new.lock"
    old.touch(mode=0o644)
    for path in (old, new):
        descriptor = locks.lock(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        os.close(descriptor)


def test_who_holds_a_lock_is_told(tmp_path: Path) -> None:
    path = tmp_path / "job.lock"
    path.touch(mode=0o644)
    with held_by_a_stranger(path) as pid:
        with pytest.raises(LockHeldError) as held:
            locks.lock(path)
        assert str(held.value).startswith(f"process {pid} ({getpass.getuser()}: ")
        assert "import fcntl" in str(held.value)
        assert "\n" not in str(held.value)
    os.close(locks.lock(path))
    assert locks.holders(path) == ""


def test_a_shared_lock_is_taken_by_all_who_share_it_and_by_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    shared = [locks.lock(path)]
    locks.share(shared[0])
    shared.append(locks.lock(path, shared=True))
    with pytest.raises(LockHeldError):
        locks.lock(path)
    for descriptor in shared:
        os.close(descriptor)
    os.close(locks.lock(path))


def test_a_file_that_is_removed_while_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, take, opened = tmp_path / "lock", locks._take, []

    def take_and_lose(descriptor: int, of: Path, shared: bool) -> None:
        take(descriptor, of, shared)
        if not opened:
            path.unlink()
        opened.append(descriptor)

    monkeypatch.setattr(locks, "_take", take_and_lose)
    descriptor = locks.lock(path)
    assert len(opened) == 2
    assert os.path.samestat(os.fstat(descriptor), path.stat())
    os.close(descriptor)


TABLE = """\
1: POSIX  ADVISORY  READ  12 fe:00:7 0 EOF
1: -> FLOCK  ADVISORY  WRITE 13 fe:00:7 0 EOF
2: FLOCK  ADVISORY  WRITE 14 08:01:7 0 EOF
3: FLOCK  ADVISORY  WRITE 15 fe:00:77 0 EOF
"""


def test_who_waits_for_a_lock_or_holds_another_one_is_not_named() -> None:
    assert locks._entries(TABLE, 7) == [(12, "fe:00"), (14, "08:01")]
