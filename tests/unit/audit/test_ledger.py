"""Ledgers: what is written, and what follows from it."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from hvd_elastic_keras.audit import ledger_file, report, verdict
from hvd_elastic_keras.audit.ledger_file import Closed, Line, Resumed, Step
from hvd_elastic_keras.cli import control_job
from hvd_elastic_keras.common import events
from hvd_elastic_keras.common.errors import LedgerError
from hvd_elastic_keras.data.plan import example_ids
from hvd_elastic_keras.data.plan.example_ids import BATCH_STRIDE

ids_lists = st.lists(st.integers(0, 2**40), max_size=50)


def step(number: int, *parts: list[int], agreed: bool = True, examples: int | None = None) -> Step:
    ids = {f"w{i}": example_ids.packed(part) for i, part in enumerate(parts)}
    count = sum(map(len, parts)) if examples is None else examples
    return Step(number, 1, count, ids, agreed)


def end(first: int, steps: int, size: int, whole: bool = True) -> Closed:
    return Closed(first, steps, whole, example_ids.packed(range(size)) if whole else "")


def judged(*lines: Line, size: int = 6) -> verdict.Account:
    """Of an epoch that begins and ends with the steps that are there."""
    numbers = [line.step for line in lines if isinstance(line, Step)]
    first, last = min(numbers), max(numbers)
    return verdict.judge([*lines, end(first, last - first + 1, size)])


def test_two_workers_use_every_example_once() -> None:
    found = judged(step(0, [0, 3], [5]), step(1, [4, 1], []), step(2, [2]))
    assert found.is_exact
    assert found.summary == "6 examples in 3 steps (w0 5, w1 1): every example exactly once"


def test_missing_repeated_and_unknown_examples_are_named() -> None:
    found = judged(step(0, [0, 3], [3]), step(1, [4, 1], [9]))
    assert not found.is_exact
    assert found.verdict == "2 missing: 2, 5; 1 repeated: 3; 1 unknown: 9"


def test_an_example_that_one_worker_used_twice_within_a_step_is_noticed() -> None:
    found = judged(step(7, [0, 1, 2, 3, 4, 5], examples=7))
    assert found.verdict == "other examples were read than planned in step 7"


def test_a_step_in_which_the_workers_read_other_examples_is_named() -> None:
    found = judged(step(0, [0, 1, 2]), step(1, [3, 4, 5], agreed=False))
    assert found.verdict == "other examples were read than planned in step 1"


def test_a_step_without_a_line_is_named() -> None:
    assert judged(step(0, [0, 1, 2]), step(2, [3, 4, 5])).verdict == "no record of step 1"


def test_a_step_that_two_successive_ranks_0_have_written_counts_once() -> None:
    assert judged(step(0, [0, 1, 2]), step(0, [0, 1, 2]), step(1, [3, 4, 5])).is_exact


def test_what_came_after_the_checkpoint_is_void_when_training_goes_on_from_it() -> None:
    lost = [step(1, [3]), step(2, [4])]
    found = judged(step(0, [0, 1, 2]), *lost, Resumed(1), step(1, [3, 4]), step(2, [5]))
    assert found.is_exact


def test_an_epoch_without_an_end_is_judged_as_far_as_it_went() -> None:
    found = verdict.judge([step(0, [0]), step(1, [1])])
    assert found.is_exact
    assert found.verdict == "no example twice so far; the epoch has not ended"
    assert not verdict.judge([step(0, [0]), step(1, [0])]).is_exact


def test_training_that_ends_within_an_epoch_does_not_count_as_all_of_it() -> None:
    found = verdict.judge([step(0, [0]), end(0, 1, 6, whole=False)])
    assert found.is_exact
    assert found.verdict == "no example twice; the epoch ended before its data"


@pytest.mark.parametrize("whole", [True, False])
def test_steps_without_a_line_at_either_end_are_named(whole: bool) -> None:
    found = verdict.judge([step(5, [2]), step(6, [3]), end(4, 4, 6, whole)])
    assert found.verdict.endswith("no record of step 4, 7")


def test_an_end_is_void_if_steps_before_it_are() -> None:
    before = [step(0, [0, 1]), step(1, [2]), end(0, 2, 3)]
    assert verdict.judge([*before, Resumed(1)]).end is None
    assert verdict.judge([*before, Resumed(2)]).verdict == "every example exactly once"
    later = [*before, Resumed(1), step(1, [2, 3]), end(0, 2, 4)]
    assert verdict.judge(later).verdict == "every example exactly once"


def test_examples_of_user_batches_are_named_by_batch() -> None:
    expected = [*range(3), *(BATCH_STRIDE + i for i in range(3))]
    closed = Closed(0, 2, True, example_ids.packed(expected))
    lines = [step(0, [0, 1, 2]), step(1, [BATCH_STRIDE]), closed]
    assert verdict.judge(lines).verdict == "2 missing: 1-2 of batch 1"


def test_only_the_first_of_many_ranges_are_listed() -> None:
    assert verdict.listed(BitMap64(range(0, 100, 2))).endswith("16, 18, …")


@given(st.lists(ids_lists, min_size=1, max_size=5))
def test_digests_of_parts_add_up_also_as_floats(parts: list[list[int]]) -> None:
    arrays = [np.array(part, np.int64) for part in parts]
    sums = np.sum(
        [example_ids.pieces(example_ids.digest(a)) for a in arrays], axis=0, dtype=np.float32
    )
    whole = example_ids.digest(np.concatenate(arrays))
    assert example_ids.digest_of_sums(sums.tolist()) == whole
    assert 0 <= whole < 2**64


def test_the_digests_of_many_workers_are_exact_in_float32() -> None:
    rows = [example_ids.pieces(2**64 - 1)] * 5000
    total = np.sum(np.array(rows, np.float32), axis=0, dtype=np.float32)
    assert example_ids.digest_of_sums(total.tolist()) == 5000 * (2**64 - 1) % 2**64


@given(st.sets(st.integers(0, 2**20), min_size=1), st.integers(0, 2**20))
def test_other_examples_have_another_digest(ids: set[int], other: int) -> None:
    kept = np.array(sorted(ids), np.int64)
    changed = np.concatenate([kept[1:], [other]])
    assert (example_ids.digest(kept) == example_ids.digest(changed)) == (other == kept[0])


@given(st.lists(st.lists(st.integers(0, 40), max_size=6), max_size=8), st.booleans())
def test_many_steps_at_once_are_judged_as_one_by_one(parts: list[list[int]], wide: bool) -> None:
    far = BATCH_STRIDE if wide else 0
    steps = [step(n, [far * (n % 2) + i for i in part]) for n, part in enumerate(parts)]
    used = collections.Counter(i for s in steps for i in example_ids.unpacked(s.ids["w0"]))
    expected = set(range(20)) | set(range(far, far + 20))
    found = verdict.judge([*steps, Closed(0, len(steps), True, example_ids.packed(expected))])
    assert set(found.repeated) == {i for i, count in used.items() if count > 1}
    assert set(found.missing) == expected - set(used)
    assert set(found.unknown) == set(used) - expected


@pytest.mark.parametrize(
    ("first", "kind"), [(0, BitMap), (2**32 - 3, BitMap), (2**32 - 2, BitMap64), (2**33, BitMap64)]
)
def test_a_range_becomes_a_set_of_as_many_bits_as_it_needs(first: int, kind: type) -> None:
    for ids in (range(first, first + 3), list(range(first, first + 3))):
        found = example_ids.id_set(ids)
        assert type(found) is kind
        assert list(found) == list(ids)
    assert not example_ids.id_set(range(0))


def test_an_id_is_the_same_in_32_and_in_64_bits() -> None:
    both = Step(
        0, 1, 2, {"w0": example_ids.packed([1]), "w1": example_ids.packed(BitMap64([1]))}, True
    )
    assert verdict.judge([both]).verdict == "1 repeated: 1"
    closed = Closed(0, 1, True, example_ids.packed(BitMap64([1, 2])))
    assert verdict.judge([step(0, [1, 2]), closed]).is_exact


@given(st.sets(st.integers(0, 2**40)))
def test_ids_are_read_back(ids: set[int]) -> None:
    assert set(example_ids.unpacked(example_ids.packed(ids))) == ids
    assert set(example_ids.unpacked(example_ids.packed(BitMap64(ids)))) == ids


@pytest.mark.parametrize("text", ["", "n", "w", "n!", "nAAAA"])
def test_what_is_no_set_of_ids_is_an_error(text: str) -> None:
    with pytest.raises(LedgerError, match="is not a set of examples"):
        example_ids.unpacked(text)


def test_ledgers_are_in_the_order_of_epochs(tmp_path: Path) -> None:
    paths = [ledger_file.file_of(tmp_path, epoch) for epoch in (1, 9998, 9999, 10000)]
    for path in reversed(paths):
        path.touch()
    assert ledger_file.epochs_in(tmp_path) == paths


def write(path: Path, *lines: Line, rest: bytes = b"") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(ledger_file.encode, lines)) + rest)


def test_a_line_that_a_killed_worker_has_begun_is_left_out(tmp_path: Path) -> None:
    path = ledger_file.file_of(tmp_path, 0)
    write(path, step(0, [0]), rest=ledger_file.encode(step(1, [1]))[:-5])
    assert list(ledger_file.LinesOf(path)) == [step(0, [0])]


def test_the_last_lines_are_those_of_a_step_and_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ledger_file.file_of(tmp_path, 0)
    assert ledger_file.lines_from(path, 0) == []
    lines = [*(step(n, [n]) for n in range(6)), Closed(0, 6, True)]
    write(path, *lines, rest=b'{"type":"st')
    for block in (1, 7, 1 << 16):
        monkeypatch.setattr(ledger_file, "BLOCK", block)
        for first in range(8):
            assert ledger_file.lines_from(path, first) == lines[first:] or first > 6
        assert ledger_file.lines_from(path, 7) == lines[6:]


@pytest.mark.parametrize("rest", [b"no json\n", b'{"type":"other"}\n'])
def test_something_else_in_the_file_is_an_error(tmp_path: Path, rest: bytes) -> None:
    path = ledger_file.file_of(tmp_path, 0)
    write(path, step(0, [0]), rest=rest)
    with pytest.raises(LedgerError, match=r"epoch-0001\.jsonl is damaged"):
        list(ledger_file.LinesOf(path))


def test_the_audit_command_judges_all_epochs_of_all_trainings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (tmp_path / name for name in ("ledger", "training-2/ledger"))
    write(ledger_file.file_of(first, 0), step(0, [0], [1]), end(0, 1, 2))
    write(ledger_file.file_of(second, 0), step(0, [0, 1]), end(0, 1, 2))
    write(ledger_file.file_of(second, 1), step(1, [0]))
    assert control_job.audit(tmp_path) == 0
    write(ledger_file.file_of(first, 2), step(2, [0]), end(2, 1, 2))
    assert control_job.audit(tmp_path) == 1
    assert capsys.readouterr().out.splitlines()[3:] == [
        "ledger/epoch-0001.jsonl: 2 examples in 1 step (w0 1, w1 1): every example exactly once",
        "ledger/epoch-0003.jsonl: 1 example in 1 step (w0 1): 1 missing: 1",
        "ledger: there is no ledger of epoch 2",
        "training-2/ledger/epoch-0001.jsonl: 2 examples in 1 step (w0 2): "
        "every example exactly once",
        "training-2/ledger/epoch-0002.jsonl: 1 example in 1 step (w0 1): "
        "no example twice so far; the epoch has not ended",
    ]


def epoch_end(epoch: int, step: int, **fields: bool) -> dict[str, Any]:
    return {"event": "epoch_end", "epoch": epoch, "step": step, "metrics": {}, **fields}


def round_running(training: int, step: int) -> dict[str, Any]:
    entry = events.RoundRunning(
        round=1,
        training=training,
        world_size=1,
        members=["w0"],
        micro_batches=[8],
        reason="start",
        step=step,
        stall_s=0.0,
        steps_lost=0,
    )
    return {"event": "round_running", **events.fields_of(entry)}


def ended_epochs(*entries: dict[str, Any]) -> dict[int, dict[int, bool]]:
    return report.ended_epochs(entry for entry in map(events.parse, entries) if entry)


THREE_EPOCHS = [round_running(1, 0), *(epoch_end(n, n + 1, audited=True) for n in range(3))]


@pytest.mark.parametrize(
    ("removed", "text"),
    [([0], "1"), ([1], "2"), ([2], "3"), ([0, 1], "1-2"), ([0, 2], "1, 3"), ([0, 1, 2], "1-3")],
)
def test_a_ledger_that_is_missing_is_named_wherever_it_was(
    removed: list[int], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in THREE_EPOCHS))
    for epoch in {0, 1, 2} - set(removed):
        path = ledger_file.file_of(tmp_path / "ledger", epoch)
        write(path, step(epoch, [0, 1]), end(epoch, 1, 2))
    assert control_job.audit(tmp_path) == 1
    assert capsys.readouterr().out.splitlines()[-1] == f"ledger: there is no ledger of epoch {text}"


def test_what_ended_after_the_step_from_which_a_job_went_on_is_expected_no_more() -> None:
    ended = ended_epochs(*THREE_EPOCHS, round_running(1, 1))
    assert ended == {1: {0: True}}
    assert report.missing(set(), ended[1]) == [0]


def test_epochs_without_audit_need_no_ledger() -> None:
    before = [round_running(1, 0), epoch_end(0, 1, audited=False)]
    later = [epoch_end(1, 2, audited=True), round_running(2, 0), epoch_end(0, 1, audited=False)]
    ended = ended_epochs(*before, *later)
    assert ended == {1: {0: False, 1: True}, 2: {0: False}}
    assert report.missing({1}, ended[1]) == []
    assert report.missing(set(), ended[2]) == []


STARTED = events.JobStarted(job_dir="jobs/demo", model="m", num_workers=1, training={})
JOB_STARTED = json.dumps({"event": "job_started", **events.fields_of(STARTED)}).encode()


@pytest.mark.parametrize(
    "damaged",
    [b'{"event": "ep', b"\xff\xfe", b"", b"[1]", b'{"event": "of_another_release"}'],
    ids=repr,
)
def test_a_line_of_the_events_that_cannot_be_read_is_named(
    damaged: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [JOB_STARTED, damaged, *(json.dumps(e).encode() for e in THREE_EPOCHS[:2]), damaged]
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    write(ledger_file.file_of(tmp_path / "ledger", 0), step(0, [0, 1]), end(0, 1, 2))
    assert control_job.audit(tmp_path) == 1
    text = "cannot be read: damaged, or of another release"
    told = capsys.readouterr().out.splitlines()
    assert told[:2] == [f"events.jsonl, line {n}: {text}" for n in (2, 5)]
    assert told[2].endswith("every example exactly once")
    assert len(told) == 3


def test_what_killed_launchers_have_left_of_their_last_lines_is_no_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The check of the model may tell of records before the job starts.
    skipped = json.dumps({"event": "records_skipped", "count": 1, "records": []}).encode()
    torn = b'{"event": "ep'
    lines = [JOB_STARTED, torn, JOB_STARTED, torn, skipped, JOB_STARTED, torn]
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(lines))
    write(ledger_file.file_of(tmp_path / "ledger", 0), step(0, [0, 1]), end(0, 1, 2))
    assert control_job.audit(tmp_path) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_an_event_log_that_a_full_disk_has_cut_off_hides_no_gap(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(json.dumps(THREE_EPOCHS[1]) + '\n{"event": "ep\n')
    for epoch in (0, 2):
        write(ledger_file.file_of(tmp_path / "ledger", epoch), step(epoch, [0]), end(epoch, 1, 1))
    assert [f.good for f in report.findings(tmp_path)] == [False, True, True, False]
