"""`--deterministic` gives the same bits after every step, whichever worker computes what."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hvd_elastic_keras.settings import env
from tests.harness import warm_python
from tests.harness.alone import Once
from tests.harness.faults import Fault
from tests.harness.fit_job import FitJob, assert_same_result
from tests.harness.fit_scenario import Scenario, scenario
from tests.harness.job import REPOSITORY, SMALL, Job, read_weights
from tests.integration.test_fit import PLANS, metric_that_does_not_add_up

if TYPE_CHECKING:
    from tests.harness.recorded_fit import Script  # needs TensorFlow

MODEL = REPOSITORY / "tests" / "harness" / "digest_model.py"
IN_SLICES = REPOSITORY / "tests" / "harness" / "sliced_digest_model.py"
DIGESTS = "HVD_ELASTIC_TEST_DIGESTS"
THREADS = 2
GATE = Fault("gate", "train", 0, step=10, action="wait")
ALONE = f"""
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(1)
from hvd_elastic_keras import Trainer, TrainingConfig
from hvd_elastic_keras.api.model_module import ModelModule

module = ModelModule({str(MODEL)!r}, config=None, seed=0, data_dir="")
config = TrainingConfig(global_batch_size=64, micro_batch_size=8, epochs=3, deterministic=True)
Trainer(
    module.model(),
    module.dataset("train"),
    validation=module.dataset("validation"),
    config=config,
    callbacks=module.callbacks(),
    job_dir={{job_dir!r}},
).fit()
"""
Digests = dict[str, str]
Weights = dict[str, np.ndarray]


def read_digests(directory: Path) -> Digests:
    """Returns digests by moment and step.

    Workers that note the same moment must note the same digest.
    """
    found: Digests = {}
    for file in directory.iterdir():
        for line in file.read_text().splitlines():
            moment, digest = line.rsplit(" ", 1)
            assert found.setdefault(moment, digest) == digest, f"{moment} of {file.name}"
    return found


@pytest.fixture(scope="module")
def alone(once: Once, tmp_path_factory: pytest.TempPathFactory) -> tuple[Digests, Weights]:
    """Returns digests and weights of one process without a launcher."""

    def train(directory: Path) -> None:
        script = ALONE.format(job_dir=str(directory / "job"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(DIGESTS, str(directory / "digests"))
            warm_python.run("-c", script, log=directory / "log")

    directory = once("deterministic", train)
    weights = read_weights(directory / "job" / "model.keras", tmp_path_factory.mktemp("weights"))
    return read_digests(directory / "digests"), weights


@pytest.fixture
def digests_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the directory in which the workers of a job note their digests."""
    monkeypatch.setenv(DIGESTS, str(tmp_path / "digests"))
    return tmp_path / "digests"


def job_of(tmp_path: Path, *flags: str, plan: list[Fault] | None = None) -> Job:
    command = (f"--model={MODEL}", "--deterministic", *SMALL)
    return Job(tmp_path, *flags, plan=plan, command=command)


def assert_same_bits(job: Job, digests: Path, expected: tuple[Digests, Weights]) -> None:
    """Asserts equal bits after every step and every epoch, and in the file at the end."""
    found = read_digests(digests)
    assert len([m for m in found if m.startswith("step")]) == 24
    assert len([m for m in found if m.startswith("epoch")]) == 3
    assert found == expected[0]
    weights = job.weights()
    assert weights.keys() == expected[1].keys()
    for name, value in weights.items():
        assert value.tobytes() == expected[1][name].tobytes(), name


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_any_number_of_workers_has_the_bits_of_one_process(
    num_workers: int, tmp_path: Path, digests_dir: Path, alone: tuple[Digests, Weights]
) -> None:
    with job_of(tmp_path, f"--num_workers={num_workers}") as job:
        job.finish()
        assert_same_bits(job, digests_dir, alone)


def test_a_join_and_a_kill_change_no_bit(
    tmp_path: Path, digests_dir: Path, alone: tuple[Digests, Weights]
) -> None:
    plan = [GATE, Fault("kill", "train", 1, step=17, size=3)]
    with job_of(tmp_path, "--num_workers=2", "--max_restarts=0", plan=plan) as job:
        job.wait_for_fault("gate")
        job.ctl("add", "1")
        job.wait_for("round_opened", lambda e: e["reason"] == "w2 joins")
        job.plan.open_gate("gate")
        job.finish()
        assert job.plan.happened("kill")
        assert [e["world_size"] for e in job.events("round_running")] == [2, 3, 2]
        assert_same_bits(job, digests_dir, alone)


@pytest.mark.slow
def test_a_kill_changes_no_bit_of_sums_that_are_exchanged_in_slices(
    tmp_path: Path, digests_dir: Path, alone: tuple[Digests, Weights]
) -> None:
    plan = [Fault("kill", "train", 1, step=5)]
    flags = ("--num_workers=3", "--max_restarts=0")
    command = (f"--model={IN_SLICES}", "--deterministic", *SMALL)
    with Job(tmp_path, *flags, plan=plan, command=command) as job:
        job.finish()
        assert job.plan.happened("kill")
        assert [e["world_size"] for e in job.events("round_running")] == [3, 2]
        assert_same_bits(job, digests_dir, alone)


@pytest.mark.slow
def test_a_job_that_goes_on_from_a_checkpoint_has_the_bits_of_one_that_was_not_stopped(
    tmp_path: Path, digests_dir: Path, alone: tuple[Digests, Weights]
) -> None:
    with job_of(tmp_path, "--num_workers=2", plan=[GATE]) as job:
        job.wait_for_fault("gate")
        job.process.terminate()
        job.wait_for("job_stopping")
        job.plan.open_gate("gate")
        job.finish(exit_code=143)
    with job_of(tmp_path, "--num_workers=3") as job:
        job.finish()
        assert_same_bits(job, digests_dir, alone)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", PLANS, ids=str)
def test_an_unchanged_script_has_the_same_bits_with_a_late_joiner_and_a_kill_of_rank_0(
    scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The user's own number of threads must not have priority here.
    monkeypatch.setenv(env.INTRA_OP_THREADS, "2")
    (tmp_path / "one").mkdir()
    with FitJob(tmp_path / "one", scenario, "--deterministic", "--num_workers=1", plan=[]) as job:
        job.finish()
        expected = job.result("w0")
    plan = PLANS[scenario]
    with FitJob(tmp_path, scenario, "--deterministic", "--num_workers=2", plan=plan) as job:
        job.let_join("gate")
        job.finish_with(["w1", "w2"], expected, tolerance=0.0)


@scenario(plain=False)
def layers_of_many_kinds(script: Script) -> None:
    """Trains layers large enough to be divided among threads."""
    import keras

    assert env.intra_op_threads() == THREADS
    keras.utils.set_random_seed(1)
    layers = keras.layers
    inputs = keras.Input((24, 24, 8))
    x = layers.Conv2D(32, 3, padding="same")(inputs)
    x = layers.DepthwiseConv2D(3)(layers.ReLU()(layers.BatchNormalization()(x)))
    x = layers.LSTM(32)(layers.Reshape((22, 22 * 32))(x))
    outputs = layers.Dense(10)(layers.Dense(256, "relu")(x))
    model = keras.Model(inputs, outputs)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    random = np.random.default_rng(0)
    x = random.normal(size=(64, 24, 24, 8)).astype(np.float32)
    script.fit(model, x=x, y=random.integers(0, 10, 64), batch_size=32, epochs=1)


@pytest.mark.slow
def test_a_fixed_number_of_threads_has_the_same_bits_with_any_workers(tmp_path: Path) -> None:
    results = []
    for num_workers in (1, 2):
        directory = tmp_path / str(num_workers)
        directory.mkdir()
        threads = f"--deterministic_threads={THREADS}"
        flags = ("--deterministic", threads, f"--num_workers={num_workers}")
        with FitJob(directory, layers_of_many_kinds, *flags, plan=[]) as job:
            job.finish()
            results.append(job.result(f"w{num_workers - 1}"))
    one, two = results
    assert_same_result(two, one, tolerance=0.0)


@pytest.mark.slow
def test_a_metric_that_does_not_add_up_has_the_same_bits_with_three_workers(
    tmp_path: Path,
) -> None:
    results = []
    for num_workers in (1, 3):
        directory = tmp_path / str(num_workers)
        directory.mkdir()
        flags = ("--deterministic", f"--num_workers={num_workers}")
        with FitJob(directory, metric_that_does_not_add_up, *flags, plan=[]) as job:
            job.finish()
            results.append(job.result(f"w{num_workers - 1}"))
    one, three = results
    assert_same_result(three, one, tolerance=0.0)
