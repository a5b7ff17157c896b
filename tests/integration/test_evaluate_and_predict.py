"""`--job=evaluate` and `--job=predict` with real workers give the numbers of plain Keras."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import pytest

import hvd_elastic_keras
from tests.harness import inference_model, nested_outputs_model
from tests.harness.faults import Fault
from tests.harness.inference_model import POINT, SIZE, computed
from tests.harness.job import Job

GLOBAL, MICRO = 64, 8
CUT = (f"--global_batch_size={GLOBAL}", f"--micro_batch_size={MICRO}")
EVERY_RANGE = list(range(0, SIZE, MICRO))


def with_weights(module: ModuleType) -> keras.Model:
    """Returns the module's model, with weights that its initialisers would not give."""
    keras.utils.set_random_seed(77)
    model: keras.Model = module.model()
    rng = np.random.default_rng(9)
    for variable in model.weights:
        variable.assign(rng.uniform(0.1, 1.0, variable.shape))
    return model


def command(module: ModuleType, job: str, weights: Path, *flags: str) -> tuple[str, ...]:
    """Returns the arguments of `run` that a user gives."""
    return (f"--model={module.__file__}", f"--job={job}", f"--checkpoint={weights}", *CUT, *flags)


def evaluated(job: Job) -> dict[str, float]:
    content = json.loads((job.job_dir / "results.json").read_text())
    assert content["num_examples"] == SIZE
    results: dict[str, float] = content["results"]
    return results


@pytest.fixture(name="weights")
def saved_weights(tmp_path: Path) -> Path:
    """Returns the saved weights of the model with one output."""
    path = tmp_path / "some.weights.h5"
    with_weights(inference_model).save_weights(path)
    return path


@pytest.fixture(name="expected")
def numbers_of_keras() -> dict[str, float]:
    """Returns the results of plain Keras."""
    model = with_weights(inference_model)
    model.compile(loss=inference_model.loss(), metrics=inference_model.metrics())
    x, y = inference_model.dataset("validation")  # type: ignore[misc]
    found: dict[str, float] = model.evaluate(x, y, batch_size=GLOBAL, verbose=0, return_dict=True)
    return found


@pytest.mark.parametrize("workers", [1, 3])
def test_an_evaluation_gives_the_numbers_of_keras(
    workers: int, weights: Path, expected: dict[str, float], tmp_path: Path
) -> None:
    asked = command(inference_model, "evaluate", weights)
    with Job(tmp_path, f"--num_workers={workers}", command=asked) as job:
        job.finish()
        assert evaluated(job) == pytest.approx(expected, rel=1e-6)
        assert f"evaluated {SIZE:,} examples" in job.output
        assert not (job.job_dir / "model.keras").exists()
        last = job.events("steps_taken")[-1]
        assert (last["epoch"], last["step"]) == (None, -(-SIZE // GLOBAL))
        assert last["metrics"] == pytest.approx(expected, rel=1e-6)
        assert last["examples_per_s"] == pytest.approx(GLOBAL / last["step_s"], rel=0.5)


def test_an_evaluation_is_the_same_when_a_worker_is_killed_in_the_middle(
    weights: Path, expected: dict[str, float], tmp_path: Path
) -> None:
    # The kill is in step 7. All workers call Python code with the first example of the whole batch.
    plan = [Fault("kill", POINT, rank=1, step=7 * GLOBAL, size=3)]
    asked = command(inference_model, "evaluate", weights, "--max_restarts=0")
    with Job(tmp_path, "--num_workers=3", command=asked, plan=plan) as job:
        job.finish()
        assert job.plan.happened("kill")
        rounds = job.events("round_running")
        assert [(e["world_size"], e["step"]) for e in rounds] == [(3, 0), (2, 7)]
        assert evaluated(job) == pytest.approx(expected, rel=1e-6)


def test_predictions_are_whole_and_in_order_when_workers_are_killed_and_join(
    tmp_path: Path,
) -> None:
    model = with_weights(nested_outputs_model)
    model.save(tmp_path / "some.keras")
    held = 10 * GLOBAL + 5 * MICRO
    killed = 4 * GLOBAL + 4 * MICRO
    plan = [
        Fault("kill", POINT, rank=1, step=killed, size=3),
        # Hold, so that the replacement comes before the end. Rank 1 has this part in a round of two
        # or three workers.
        Fault("hold", POINT, rank=1, step=held, action="wait"),
    ]
    asked = command(nested_outputs_model, "predict", tmp_path / "some.keras")
    with Job(tmp_path, "--num_workers=3", command=asked, plan=plan) as job:
        job.wait_for_fault("hold")
        job.wait_for("worker_ready", lambda e: e["worker_id"] == "w3")
        job.plan.open_gate("hold")
        job.finish()
        assert job.plan.happened("kill")
        rounds = [(e["world_size"], e["step"]) for e in job.events("round_running")]
        found = hvd_elastic_keras.read_predictions(job.job_dir / "predictions")
    assert rounds[:2] == [(3, 0), (2, 4)]
    assert rounds[2][0] == 3
    assert rounds[2][1] >= 4
    # The killed worker had not written its current range. Nothing else is computed twice.
    assert sorted(computed(tmp_path / "faults")) == EVERY_RANGE
    assert_same(found, model.predict(inference_model.examples(), verbose=0))
    np.testing.assert_array_equal(found["pair"][1], np.arange(SIZE))


@pytest.mark.slow
def test_a_prediction_that_was_stopped_goes_on_where_it_was(weights: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    held = 6 * GLOBAL + 5 * MICRO
    plan = [Fault("hold", POINT, rank=1, step=held, action="wait")]
    asked = command(inference_model, "predict", weights, f"--output={output}")
    with Job(tmp_path, "--num_workers=2", command=asked, plan=plan) as job:
        job.wait_for_fault("hold")
        job.process.send_signal(signal.SIGTERM)
        job.wait_for("job_stopping")
        job.plan.open_gate("hold")
        job.finish(exit_code=128 + signal.SIGTERM)
        before = sorted(computed(tmp_path / "faults"))
        assert 0 < len(before) < len(EVERY_RANGE)
        with pytest.raises(hvd_elastic_keras.ElasticError, match="begun, but are not finished"):
            hvd_elastic_keras.read_predictions(output)
        job.start_launcher()
        job.finish()
        assert job.events("round_running")[-1]["step"] in (7, 8)
    assert sorted(computed(tmp_path / "faults")) == EVERY_RANGE
    expected = with_weights(inference_model).predict(inference_model.examples(), verbose=0)
    assert_same(hvd_elastic_keras.read_predictions(output), expected)


def assert_same(found: Any, expected: Any) -> None:
    """Asserts the same nesting, and the same values up to rounding."""
    keras.tree.assert_same_structure(found, expected)
    for mine, other in zip(keras.tree.flatten(found), keras.tree.flatten(expected), strict=True):
        assert mine.dtype == other.dtype
        np.testing.assert_allclose(mine, other, rtol=0, atol=2e-6)
