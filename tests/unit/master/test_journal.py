"""The master's journal on a real disk, cut and damaged as crashes and disks do it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_elastic_keras.master import journal
from hvd_elastic_keras.master.journal import Journal
from hvd_elastic_keras.master.machine.claims import Holder
from hvd_elastic_keras.master.machine.decisions import Decisions, decisions_of
from tests.unit.master.membership_driver import Job, running_job

COMMAND = ("--model=x", "--num_workers=2")


def some_decisions() -> list[Decisions]:
    """Those of a small job: two workers start, train, one dies, the other goes on."""
    job = Job(2)
    kept = [decisions_of(job.state, {}, {}, {})]
    for act in (
        job.start,
        lambda: job.kill("w1"),
        lambda: job.resume("w0", step=3),
        job.interrupt,
    ):
        act()
        kept.append(decisions_of(job.state, {"a": Holder("w0", (1, False, 3, 0))}, {}, {}))
    return kept


def write_all(path: Path, kept: list[Decisions]) -> list[int]:
    """Returns where each entry ends."""
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


def test_steps_alone_are_not_written(tmp_path: Path) -> None:
    job = running_job(2)
    written = Journal(tmp_path / "journal")
    written.write(1, COMMAND, decisions_of(job.state, {}, {}, {}))
    size = (tmp_path / "journal").stat().st_size
    job.heartbeat("w0", step=5)
    written.write(1, COMMAND, decisions_of(job.state, {}, {}, {}))
    assert (tmp_path / "journal").stat().st_size == size


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


def test_a_journal_that_cannot_be_written_says_so_once_and_is_not_read_again(
    tmp_path: Path,
) -> None:
    kept = some_decisions()
    directory = tmp_path / "gone"
    directory.mkdir()
    written = Journal(directory / "journal")
    directory.rmdir()
    with pytest.raises(OSError, match="No such file"):
        written.write(1, COMMAND, kept[0])
    directory.mkdir()
    written.write(1, COMMAND, kept[1])
    assert last_of(directory / "journal") is None
