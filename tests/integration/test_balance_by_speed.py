"""`--balance=speed`: a slower worker computes less of each batch, and the result stays the same."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.harness import faults
from tests.harness.job import FAULT_MODEL, Event, Job, assert_same_weights
from tests.harness.pauses import paused

EPOCHS = 4
"""Epochs of 32 steps in all.

With even shares, a step takes 0.3 s and more. 20 to 22 of them fill two windows of measurements.
"""
COMMAND = (
    f"--model={FAULT_MODEL}",
    *("--global_batch_size=64", "--micro_batch_size=8", f"--epochs={EPOCHS}"),
)
SLOWER = "w1=0.1"
"""Additional seconds for each micro-batch, which takes about one millisecond."""
SCRIPT = f"""
import keras
import tensorflow as tf

from hvd_elastic_keras import ElasticCallback
from tests.harness import fault_model

keras.utils.set_random_seed(1)
model = fault_model.model()
data = tf.data.Dataset.from_tensor_slices(fault_model.dataset("train"))
data = data.shuffle(480, seed=2).batch(64)
model.fit(data, epochs={EPOCHS}, verbose=2, callbacks=[ElasticCallback(micro_batch_size=8)])
"""


def slowest_gets_less(event: Event) -> bool:
    shares: list[int] = event["micro_batches"]
    return sum(shares) == 8 and shares[1] < min(shares[0], shares[2]) and min(shares) >= 1


@pytest.mark.slow(but=("mode0-1e-05",))
@pytest.mark.parametrize(("mode", "tolerance"), [((), 1e-5), (("--deterministic",), 0.0)])
def test_a_slow_worker_gets_fewer_micro_batches_and_the_weights_are_the_same(
    mode: tuple[str, ...], tolerance: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").mkdir()
    with Job(tmp_path / "one", "--num_workers=1", *mode, command=COMMAND) as job:
        job.finish()
        expected = job.weights()
    monkeypatch.setenv(faults.SLOW, SLOWER)
    flags = ("--num_workers=3", "--max_restarts=0", "--balance=speed", *mode)
    # Rank 0 is held while the first balanced step is computed. The kill below comes after it.
    gate = faults.Fault("gate", "train", 0, step=26, action="wait")
    with Job(tmp_path, *flags, plan=[gate], command=COMMAND) as job:
        job.wait_for_fault("gate")
        balanced = job.events("shares_balanced")
        assert balanced
        assert slowest_gets_less(balanced[0]), balanced
        assert "slowest is w1" in job.output
        job.signal("w2", signal.SIGKILL)
        job.plan.open_gate("gate")
        job.finish()
        assert [e["micro_batches"] for e in job.events("round_running")] == [[3, 3, 2], [4, 4]]
        assert all(e["steps_lost"] == 0 for e in job.events("round_running"))
        assert_same_weights(job.weights(), expected, tolerance)


@pytest.mark.slow
def test_an_unchanged_script_follows_speed_when_the_launcher_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    (tmp_path / "one").mkdir()
    with Job(tmp_path / "one", "--num_workers=1", command=(str(script),)) as job:
        job.finish()
        expected = job.weights()
    monkeypatch.setenv(faults.SLOW, SLOWER)
    flags = ("--num_workers=3", "--max_restarts=0", "--balance=speed")
    with Job(tmp_path, *flags, command=(str(script),)) as job:
        job.finish()
        assert slowest_gets_less(job.events("shares_balanced")[0])
        assert_same_weights(job.weights(), expected)


@pytest.mark.slow
def test_a_worker_that_is_paused_most_of_the_time_gets_less_also_in_the_next_round(
    tmp_path: Path,
) -> None:
    """w1 runs for 10 of every 40 ms, and a step takes less time than that."""
    command = (
        f"--model={FAULT_MODEL}",
        *("--global_batch_size=64", "--micro_batch_size=4", "--epochs=100000"),
    )
    with Job(tmp_path, "--num_workers=2", "--balance=speed", command=command) as job:
        job.wait_for_round(2)
        with paused(job.pid_of("w1"), stop_s=0.03, run_s=0.01):
            balanced = job.wait_for("shares_balanced")
            assert balanced["micro_batches"][1] <= 6, balanced
            assert balanced["slowness"]["w1"] > 1.5
            job.ctl("add", "1")
            running = job.wait_for_round(3)
            # The first event of that round is what was known before.
            kept = job.wait_for("shares_balanced", lambda e: len(e["micro_batches"]) == 3)
            assert kept["step"] == running["step"]
            assert kept["micro_batches"][1] < min(kept["micro_batches"][::2])
        job.process.send_signal(signal.SIGINT)
        job.finish(exit_code=130)
