"""A `tf.data` pipeline and callbacks with state survive kills, joins and restarts."""

from __future__ import annotations

import collections
import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from hvd_elastic_keras.audit import ledger_file
from hvd_elastic_keras.data.plan import example_ids
from model_zoo import digits
from tests.harness.faults import Fault
from tests.harness.job import FAULT_MODEL, SMALL, Job, assert_same_weights

DATASET_MODEL = FAULT_MODEL.with_name("dataset_model.py")
COMMAND = (f"--model={DATASET_MODEL}", *SMALL)


def test_a_kill_and_a_late_joiner_change_nothing(tmp_path: Path) -> None:
    with Job(tmp_path / "undisturbed", "--num_workers=1", command=COMMAND) as undisturbed:
        undisturbed.finish()
    plan = [
        Fault("gate", "train", 0, step=11, action="wait"),
        Fault("kill", "train", 1, step=14, size=3),
    ]
    flags = ("--num_workers=2", "--max_restarts=0", "--audit")
    with Job(tmp_path / "disturbed", *flags, command=COMMAND, plan=plan) as job:
        job.wait_for_fault("gate")
        job.ctl("add", "1")
        job.wait_for("round_opened", lambda e: e["reason"] == "w2 joins")
        job.plan.open_gate("gate")
        job.wait_for_round(3)
        job.finish()
        assert all(job.plan.happened(f.name) for f in plan)
        assert_same_weights(job.weights(), undisturbed.weights())
        assert_ids_are_the_places_of_what_was_computed(job)
        log = (job.job_dir / "logs" / "w2.log").read_text()
        before_its_first_round, _, _ = log.partition("INFO round ")
        assert "INFO read the training data again up to batch 4 " in before_its_first_round
        rates = [
            json.loads((j.job_dir / "history.json").read_text())["history"]["learning_rate"]
            for j in (job, undisturbed)
        ]
        np.testing.assert_allclose(*rates, rtol=1e-6)
        assert len(rates[0]) == 3


def assert_ids_are_the_places_of_what_was_computed(job: Job) -> None:
    """Compares each line of the ledgers with the images that its workers have noted."""
    job.assert_audited(epochs=3)
    computed: dict[tuple[str, int, int], list[int]] = collections.defaultdict(list)
    for notes in job.plan.path.parent.glob("images-*.jsonl"):
        worker = notes.stem.removeprefix("images-")
        for step, number, sums in map(json.loads, notes.read_text().splitlines()):
            computed[worker, step, number] += sums
    workers = set()
    for epoch, path in enumerate(ledger_file.epochs_in(job.job_dir / "ledger")):
        in_order = images_of_epoch(epoch)
        for line in ledger_file.LinesOf(path):
            for worker, text in line.ids.items() if isinstance(line, ledger_file.Step) else ():
                expected = sorted(in_order[place] for place in example_ids.unpacked(text))
                assert sorted(computed[worker, line.step, line.round]) == expected, line
                workers.add(worker)
    assert workers == {"w0", "w1", "w2"}


def images_of_epoch(epoch: int) -> list[int]:
    """Returns checksums of the images of `dataset_model.py`'s dataset, in its order."""
    tf.random.set_seed(0)  # the job's seed, from which `shuffle` draws too
    images, labels = (array[:480] for array in digits.load("train"))
    examples = tf.data.Dataset.from_tensor_slices((images, labels))
    shuffled = examples.shuffle(100, seed=epoch, reshuffle_each_iteration=False)
    kept = shuffled.filter(lambda image, label: label < 9)
    return [zlib.crc32(image.tobytes()) for image, _ in kept.as_numpy_iterator()]


def test_a_job_directory_of_another_training_is_refused(tmp_path: Path) -> None:
    with Job(tmp_path, "--num_workers=1", "--epochs=1") as job:
        job.finish()
    with Job(tmp_path, "--num_workers=1", "--global_batch_size=32") as other:
        other.finish(exit_code=2)
        assert "was made with global_batch_size=64, but now global_batch_size=32" in other.output


STOPPER = """
import os
import keras, numpy as np

def model():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    return model

def dataset(split):
    x = np.ones((640, 4), "float32")
    return x, x[:, :2]

class OneWorkerWantsToStop(keras.callbacks.Callback):
    def on_{hook}(self, index, logs=None):
        if os.environ["HVD_ELASTIC_WORKER_ID"] == "w1" and index == 1:
            self.model.stop_training = True

def callbacks():
    return [OneWorkerWantsToStop()]
"""


@pytest.mark.parametrize(("hook", "steps"), [("train_batch_end", 2), ("epoch_end", 20)])
def test_all_workers_stop_when_the_callback_of_one_wants_to(
    hook: str, steps: int, tmp_path: Path
) -> None:
    model = tmp_path / "stopper.py"
    model.write_text(STOPPER.format(hook=hook))
    flags = ("--global_batch_size=64", "--epochs=50", "--num_workers=2")
    with Job(tmp_path, command=(f"--model={model}", *flags)) as job:
        job.finish()
        assert job.events("job_finished")[0]["step"] == steps
        assert {e["cause"] for e in job.events("worker_exited")} == {"finished"}
