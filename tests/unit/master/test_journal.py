"""The master's journal on a real disk, cut and damaged as crashes and disks do it."""

from __future__ import annotations

import errno
import io
import os
import shutil
import zlib
from pathlib import Path

import msgspec
import pytest

from hvd_elastic_keras.common import protocol
from hvd_elastic_keras.master import journal
from hvd_elastic_keras.master.journal import Journal, Term
from hvd_elastic_keras.master.machine.claims import Claims, Holder
from hvd_elastic_keras.master.machine.decisions import Decisions, decisions_of
from hvd_elastic_keras.master.machine.state import State
from hvd_elastic_keras.observe.console import Console
from tests.unit.master.membership_driver import Job, running_job

COMMAND = ("--model=x", "--num_workers=2")


def some_decisions() -> list[Decisions]:
    """Returns the decisions of a small job.

    Two workers start and train, one dies, the other continues, and the job is interrupted.
    """
    job = Job(2)
    kept = [decisions_of(job.state, Claims(), {})]
    for act in (
        job.start,
        lambda: job.kill("w1"),
        lambda: job.resume("w0", step=3),
        job.interrupt,
    ):
        act()
        kept.append(decisions_of(job.state, Claims({"a": Holder("w0", (1, False, 3, 0))}), {}))
    return kept


def write_all(path: Path, kept: list[Decisions]) -> list[int]:
    """Writes all entries; returns the position at which each ends."""
    ends, written = [], Journal(path)
    for decisions in kept:
        written.write(1, COMMAND, decisions)
        ends.append(path.stat().st_size)
    written.close()
    return ends


def last_of(path: Path) -> Decisions | None:
    last = Journal(path).last
    return last.decisions if last else None


def test_another_master_reads_what_was_decided_last(tmp_path: Path) -> None:
    kept = some_decisions()
    assert last_of(tmp_path / "journal") is None
    write_all(tmp_path / "journal", kept)
    last = Journal(tmp_path / "journal").last
    assert last is not None
    assert (last.decisions, last.term, last.command) == (kept[-1], 1, COMMAND)
    assert last.sequence == len(kept)
    assert (tmp_path / "journal").stat().st_mode & 0o777 == 0o600


def test_a_journal_that_ends_at_any_byte_holds_what_was_whole(tmp_path: Path) -> None:
    kept = some_decisions()
    ends = write_all(tmp_path / "whole", kept)
    data, cut = (tmp_path / "whole").read_bytes(), tmp_path / "cut"
    for size in range(len(data) + 1):
        cut.write_bytes(data[:size])
        whole = [d for d, end in zip(kept, ends, strict=True) if end <= size]
        assert last_of(cut) == (whole[-1] if whole else None), size


def test_the_next_master_writes_on_after_a_torn_end(tmp_path: Path) -> None:
    kept = some_decisions()
    ends = write_all(tmp_path / "journal", kept)
    data = (tmp_path / "journal").read_bytes()
    (tmp_path / "journal").write_bytes(data[: ends[-1] - 7])
    following = Journal(tmp_path / "journal")
    following.write(2, COMMAND, kept[0])
    following.write(2, COMMAND, kept[1])
    last = Journal(tmp_path / "journal").last
    assert last is not None
    assert (last.term, last.sequence, last.decisions) == (2, len(kept) + 1, kept[1])


def test_a_damaged_entry_is_not_believed(tmp_path: Path) -> None:
    kept = some_decisions()
    ends = write_all(tmp_path / "journal", kept)
    data = bytearray((tmp_path / "journal").read_bytes())
    for position in range(ends[-2], ends[-1], 17):
        damaged = bytearray(data)
        damaged[position] ^= 1
        (tmp_path / "journal").write_bytes(damaged)
        assert last_of(tmp_path / "journal") == kept[-2], position


def test_what_may_have_been_lost_after_the_newest_whole_entry_is_known(tmp_path: Path) -> None:
    ends = write_all(tmp_path / "journal", some_decisions())
    assert Journal(tmp_path / "journal").most_lost == 0
    data = bytearray((tmp_path / "journal").read_bytes())
    for number in (1, 2):
        data[ends[-1 - number] + 30] ^= 1
        (tmp_path / "journal").write_bytes(data)
        assert Journal(tmp_path / "journal").most_lost >= number
    (tmp_path / "journal").write_bytes(data[: ends[-3] + 1])
    assert Journal(tmp_path / "journal").most_lost == 1


def test_what_is_only_observed_is_not_written(tmp_path: Path) -> None:
    job = running_job(2)
    written = Journal(tmp_path / "journal")
    written.write(1, COMMAND, decisions_of(job.state, Claims(), {}))
    size = (tmp_path / "journal").stat().st_size
    for observe in (
        lambda: job.heartbeat("w0", step=5, phase="evaluating"),
        lambda: job.heartbeat("w1", step=5, in_collective=True),
        lambda: job.send(protocol.Alive(worker_id="w0")),
        lambda: job.wait(1.0),
    ):
        before = job.state
        observe()
        assert job.state != before
        written.write(1, COMMAND, decisions_of(job.state, Claims(), {}, written_at=job.now))
        assert (tmp_path / "journal").stat().st_size == size
    job.add("w2")
    written.write(1, COMMAND, decisions_of(job.state, Claims(), {}))
    assert (tmp_path / "journal").stat().st_size > size


def test_an_entry_holds_what_is_decided_and_nothing_else() -> None:
    job = running_job(2)
    job.heartbeat("w0", step=5)
    job.fail("w1")
    job.enter("w0", step=5)
    kept = msgspec.to_builtins(decisions_of(job.state, Claims(), {}))
    assert kept["state"] == {
        "version": 3,
        "job": {"type": "Active"},
        "workers": {
            "w0": {"worker_id": "w0", "phase": "member", "pid": 1, "seniority": 0, "training": 1},
            "w2": {"worker_id": "w2", "slot": 1},
        },
        "next_worker_number": 3,
        "slots": {"localhost": 2},
        "training": {"number": 1, "num_micro_batches": 8},
        "rounds": {
            "phase": {"type": "Confirming", "number": 2, "size_before": 2, "members": ("w0",)},
            "last_number": 2,
            "last_members": ("w0",),
            "next_seniority": 2,
            "broken_through": 1,
        },
        "restarts": {"replacements": ({},)},
    }
    assert kept["newest_step"] == 5


@pytest.mark.parametrize(
    ("whole", "damaged"),
    [
        (b'"slots":{', b'"slotz":{'),
        (b'"worker_id":"w0"', b'"worker_id":0'),
        (b'"type":"Running"', b'"type":"Walking"'),
        (b'"phase":"member"', b'"phase":"guest"'),
        (b'"worker_id":"w0"', b'"worker_id":"w0","since":1'),
    ],
)
def test_an_entry_of_another_form_is_refused(tmp_path: Path, whole: bytes, damaged: bytes) -> None:
    write_all(tmp_path / "journal", [decisions_of(running_job(2).state, Claims(), {})])
    body = (tmp_path / "journal").read_bytes()[9:-1]
    assert whole in body
    body = body.replace(whole, damaged)
    (tmp_path / "journal").write_bytes(b"%08x %b\n" % (zlib.crc32(body), body))
    assert "another release of this package has written it" in Journal(tmp_path / "journal").problem


def test_no_entry_is_shorter_than_is_assumed_of_lost_ones(tmp_path: Path) -> None:
    written = Journal(tmp_path / "journal")
    written.write(1, (), decisions_of(State(), Claims(), {}))
    paths = len(str(tmp_path)) + len(str(Path.cwd()))
    assert (tmp_path / "journal").stat().st_size - paths >= journal.LEAST_ENTRY_BYTES


def test_a_refused_command_leaves_that_of_the_master_before(tmp_path: Path) -> None:
    kept = some_decisions()
    first = Term(tmp_path, COMMAND, Console(io.StringIO()), sources={"model": "there"})
    first.give_back()
    first.keep(kept[-1])
    first.close()
    for _ in range(2):
        refused = Term(tmp_path, ("--model=y",), Console(io.StringIO()), sources={"model": "here"})
        refused.keep(kept[0])
        refused.give_back()
        refused.close()
    last = Journal(tmp_path / "journal").last
    assert last is not None
    assert (last.command, last.sources) == (COMMAND, {"model": "there"})
    assert (last.decisions, last.term) == (kept[-1], 3)


def test_a_long_journal_is_replaced_by_its_last_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = some_decisions()
    one = write_all(tmp_path / "one", kept[:1])[0]
    monkeypatch.setattr(journal, "COMPACT_BYTES", 3 * one)
    ends = write_all(tmp_path / "journal", kept * 5)
    assert max(ends) < 9 * one
    last = Journal(tmp_path / "journal").last
    assert last is not None
    assert (last.decisions, last.sequence) == (kept[-1], 5 * len(kept))
    assert [path.name for path in tmp_path.iterdir() if "new" in path.name] == []


class Disk:
    """A disk that has only `room` bytes left; None is no limit.

    These bytes of a write are written even if the rest fails.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        self._write = os.pwrite
        monkeypatch.setattr(os, "pwrite", self.write)

    def write(self, file: int, data: bytes, position: int) -> int:
        if self.room is None:
            return self._write(file, data, position)
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self._write(file, data[: self.room], position)
        self.room -= written
        return written


@pytest.mark.parametrize("room", [0, 100])
@pytest.mark.parametrize("is_new", [False, True])
def test_a_journal_without_room_is_gone_and_begins_anew_when_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, is_new: bool
) -> None:
    kept, path = some_decisions(), tmp_path / "journal"
    disk, written = Disk(monkeypatch), Journal(path)
    if not is_new:
        written.write(1, COMMAND, kept[0])
    for decisions in kept[1:3]:
        disk.room = room
        with pytest.raises(OSError, match="No space left"):
            written.write(1, COMMAND, decisions)
        assert written.is_broken
        assert list(tmp_path.iterdir()) == [], "an old one says what is not true any more"
    disk.room = None
    written.write(1, COMMAND, kept[2])
    assert not written.is_broken
    assert last_of(path) == kept[2]
    written.write(1, COMMAND, kept[3])
    assert last_of(path) == kept[3]
    assert written.last is not None
    assert written.last.sequence == (2 if is_new else 3)


def test_the_decisions_of_before_are_written_again_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, path = some_decisions(), tmp_path / "journal"
    disk, written = Disk(monkeypatch), Journal(path)
    written.write(1, COMMAND, kept[0])
    disk.room = 0
    with pytest.raises(OSError, match="No space left"):
        written.write(1, COMMAND, kept[1])
    disk.room = None
    written.write(1, COMMAND, kept[0])  # the same as before the failed write
    assert last_of(path) == kept[0]


def test_people_are_told_once_and_a_warning_stays_as_long_as_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, said = some_decisions(), io.StringIO()
    term = Term(tmp_path, COMMAND, Console(said))
    disk = Disk(monkeypatch)
    for decisions in kept[:2]:
        disk.room = 0
        term.keep(decisions)
        assert "the journal cannot be written (No space left on device)" in term.trouble
    disk.room = None
    term.keep(kept[1])
    assert term.trouble == ""
    told = said.getvalue().splitlines()
    assert len(told) == 2
    assert "its workers cannot be taken over" in told[0]
    assert "the journal is written again" in told[1]
    following = Term(tmp_path, COMMAND, Console(said))
    assert (following.number, following.before) == (2, kept[1])


def test_why_there_is_no_entry_is_told(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    assert Journal(path).problem == "cannot be read (No such file or directory)"
    path.write_bytes(b"")
    assert Journal(path).problem == "is empty"
    path.write_bytes(b"00000000 {}\n")
    assert Journal(path).problem == "is damaged"
    body = b'{"sequence": 1, "since": "another release"}'
    path.write_bytes(b"%08x %b\n" % (zlib.crc32(body), body))
    assert "another release of this package has written it" in Journal(path).problem
    write_all(path, some_decisions())
    assert Journal(path).problem == ""


def test_a_journal_in_a_copied_directory_names_the_original(tmp_path: Path) -> None:
    original, copy, moved = (tmp_path / name for name in ("original", "copy", "moved"))
    original.mkdir()
    write_all(original / "journal", some_decisions())
    console = Console(io.StringIO())
    assert Term(original, COMMAND, console).original == ""
    shutil.copytree(original, copy)
    assert Term(copy, COMMAND, console).original == str(original)
    original.rename(moved)
    assert Term(moved, COMMAND, console).original == "", "that is the one, elsewhere"
