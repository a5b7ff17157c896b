"""Real jobs that read from sources with random access and from TFRecord files."""

from __future__ import annotations

import collections
import json
from pathlib import Path

import numpy as np
import pytest

from tests.harness import warm_python
from tests.harness.faults import Fault
from tests.harness.job import FAULT_MODEL, SMALL, Job, assert_same_weights

SOURCE_MODEL = FAULT_MODEL.with_name("source_model.py")
COMMAND = (f"--model={SOURCE_MODEL}", *SMALL)
EXAMPLES = 480
EPOCHS = 3
WRITE = "import pathlib, sys; from tests.harness import source_model as m; "
WRITE += "m.write_records(pathlib.Path(sys.argv[1]))"


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the directory in which workers note which examples they prepare."""
    directory = tmp_path / "notes"
    directory.mkdir()
    monkeypatch.setenv("HVD_ELASTIC_TEST_NOTES", str(directory))
    return directory


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Returns the content of a good TFRecord file."""
    path = tmp_path_factory.mktemp("written") / "train"
    warm_python.run("-c", WRITE, path, log=path.with_suffix(".log"))
    return path.read_bytes()


@pytest.fixture
def records(tmp_path: Path, written: bytes) -> Path:
    """Returns a TFRecord file for this test alone."""
    path = tmp_path / "train.tfrecord"
    path.write_bytes(written)
    return path


def prepared(notes: Path) -> dict[int, collections.Counter[int]]:
    """Returns how often each example was prepared in each epoch, by all workers together."""
    counts: dict[int, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    for path in notes.iterdir():
        if path.name == "alone":  # the check before the job
            continue
        for line in path.read_text().splitlines():
            epoch, index = map(int, line.split())
            counts[epoch][index] += 1
    return counts


@pytest.mark.slow
def test_each_example_is_prepared_once_per_epoch_by_one_worker(
    notes: Path, tmp_path: Path, expected_weights: dict[str, np.ndarray]
) -> None:
    with Job(tmp_path, "--num_workers=3", command=COMMAND) as job:
        job.finish()
        assert_same_weights(job.weights(), expected_weights)
    counts = prepared(notes)
    for epoch in range(EPOCHS):
        assert counts[epoch] == dict.fromkeys(range(EXAMPLES), 1)
    assert len([p for p in notes.iterdir() if p.name != "alone"]) == 3


def test_after_a_kill_only_what_was_read_ahead_is_prepared_again(
    notes: Path, tmp_path: Path, expected_weights: dict[str, np.ndarray]
) -> None:
    plan = [Fault("kill", "train", 1, step=11, size=2)]
    with Job(tmp_path, "--num_workers=2", command=COMMAND, plan=plan) as job:
        job.finish()
        assert job.plan.happened("kill")
        assert_same_weights(job.weights(), expected_weights)
    counts = prepared(notes)
    # Only the examples read ahead when the round ended are prepared again.
    assert counts[0] == dict.fromkeys(range(EXAMPLES), 1)
    assert counts[1].keys() == set(range(EXAMPLES))


@pytest.mark.slow
def test_records_give_the_weights_that_arrays_do(
    records: Path, tmp_path: Path, expected_weights: dict[str, np.ndarray]
) -> None:
    command = (*COMMAND, f"--data_dir={records}")
    with Job(tmp_path, "--num_workers=2", command=command) as job:
        job.finish()
        assert_same_weights(job.weights(), expected_weights)


def spoil(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(bytes(data))


def test_a_corrupt_record_is_refused_or_left_out_with_a_warning(
    records: Path, tmp_path: Path
) -> None:
    size = records.stat().st_size // EXAMPLES
    spoil(records, 5 * size + 100)
    where = f"{records} is corrupt: the record at byte {5 * size:,} cannot be read"
    command = (*COMMAND, f"--data_dir={records}", "--epochs=1")
    with Job(tmp_path, "--num_workers=2", command=command) as job:
        job.finish(exit_code=2)
        assert where in job.output
        assert "--skip_corrupt" in job.output
    with Job(tmp_path, "--num_workers=2", "--skip_corrupt", command=command) as job:
        job.finish()
        place = f"{records} at byte {5 * size:,}"
        assert job.output.count(f"warning: 1 corrupt record is left out: {place}") == 1
        assert f"{EXAMPLES - 1} examples" in job.output
        (event,) = job.events("records_skipped")
        assert [(r["path"], r["offset"]) for r in event["records"]] == [(str(records), 5 * size)]


@pytest.mark.slow
def test_a_job_goes_on_with_the_same_data_only(records: Path, tmp_path: Path) -> None:
    whole = records.read_bytes()
    size = len(whole) // EXAMPLES
    command = (*COMMAND, f"--data_dir={records}", "--num_workers=1")
    with Job(tmp_path, "--epochs=1", command=command) as job:
        job.finish()
    records.write_bytes(whole[: 300 * size])
    with Job(tmp_path, command=command) as job:
        job.finish(exit_code=2)
        assert (
            "was made with 480 training examples, but now there are 300 training examples"
            in job.output
        )
    records.write_bytes(whole[size:] + whole[:size])
    with Job(tmp_path, command=command) as job:
        job.finish(exit_code=2)
        assert "The first batch of the training data is not the one that" in job.output
    records.write_bytes(whole)
    with Job(tmp_path, "--drop_remainder", command=command) as job:
        job.finish(exit_code=2)
        assert "was made with drop_remainder=False, but now drop_remainder=True" in job.output
    with Job(tmp_path, "--epochs=2", command=command) as job:
        job.finish()
        assert [e["step"] for e in job.events("checkpoint_loaded")] == [8]


@pytest.mark.slow
def test_the_last_partial_batch_is_left_out_if_asked(tmp_path: Path, notes: Path) -> None:
    with Job(tmp_path, "--num_workers=2", "--drop_remainder", command=COMMAND) as job:
        job.finish()
        assert "3 epochs of 7 steps" in job.output
    history = json.loads((job.job_dir / "history.json").read_text())
    assert len(history["epoch"]) == EPOCHS
    counts = prepared(notes)
    left_out = [set(range(EXAMPLES)) - counts[epoch].keys() for epoch in range(EPOCHS)]
    assert [len(indices) for indices in left_out] == [EXAMPLES % 64] * EPOCHS
    assert left_out[0] != left_out[1]


@pytest.mark.slow
def test_fewer_examples_than_a_global_batch_are_one_smaller_step(
    tmp_path: Path, notes: Path
) -> None:
    flags = ("--num_workers=2", "--global_batch_size=512", "--micro_batch_size=64", "--epochs=2")
    with Job(tmp_path, *flags, command=COMMAND) as job:
        job.finish()
        text = "warning: there are 480 training examples, fewer than the 512 of a global batch"
        assert job.output.count(text) == 1
        assert job.events("job_finished")[0]["step"] == 2
