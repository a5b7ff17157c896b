"""What a new user meets: results, scripts, and clear answers to wrong input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.harness.job import ColdJob, Job
from tests.harness.plain_module import MODEL

SCRIPT = """
import sys
import keras, numpy as np
from hvd_elastic_keras import Trainer, TrainingConfig

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
model.compile("sgd", "mse")
x = np.ones((64, 4), "float32")
history = Trainer(model, (x, x[:, :2]), config=TrainingConfig(epochs=2)).fit()
print("losses", len(history.history["loss"]), "argument", sys.argv[1])
"""


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_a_job_leaves_events_logs_model_and_history(tmp_path: Path) -> None:
    model = write(tmp_path / "my_model.py", MODEL)
    with ColdJob(tmp_path, "--num_workers=2", command=(f"--model={model}", "--steps=3")) as job:
        job.finish()
        assert {e["event"] for e in job.events()} >= {
            "job_started",
            "worker_started",
            "worker_ready",
            "round_opened",
            "round_running",
            "worker_exited",
            "epoch_end",
            "job_finished",
        }
        assert {e["cause"] for e in job.events("worker_exited")} == {"finished"}
        assert sorted(p.name for p in (job.job_dir / "logs").iterdir()) == ["w0.log", "w1.log"]
        history = json.loads((job.job_dir / "history.json").read_text())
        assert len(history["history"]["loss"]) == 3  # an epoch is a single step here
        assert "finished after 3 steps" in job.output


def test_a_script_with_a_trainer_runs_elastically(tmp_path: Path) -> None:
    script = write(tmp_path / "train.py", SCRIPT)
    with ColdJob(tmp_path, "--num_workers=2", command=(script, "--hello")) as job:
        job.finish()
        assert job.events("round_running")[0]["world_size"] == 2
        assert "[w0] losses 2 argument --hello" in job.output
        # Output that all workers print is shown once.
        assert "[w1]" not in job.output
        log = (job.job_dir / "logs" / "w1.log").read_text()
        assert "losses 2 argument --hello" in log.splitlines()


def test_a_wrong_value_in_a_script_ends_the_job_before_any_training(tmp_path: Path) -> None:
    script = write(tmp_path / "train.py", SCRIPT.replace("epochs=2", 'batch="per_workers"'))
    with Job(tmp_path, "--num_workers=1", command=(script, "--hello")) as job:
        job.finish(exit_code=2)
        told = [line for line in job.output.splitlines() if not line.startswith("[elastic] job")]
        assert told == [
            "error: batch='per_workers' was given, expected a value that is 'global' or "
            "'per_worker'."
        ]
        assert len(job.events("worker_started")) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("def dataset", "def data"), "has no function dataset()"),
        (("def loss", "def no_loss"), "is not compiled and there is no loss()"),
        (("return x, np", "return x[1:], np"), "have different lengths: [63, 64]"),
        (("Input((4,))", "Input((5,))"), "The model does not accept the data"),
        (("def model():", "def model(size):"), "model() of"),
        (("import keras", "import no_such_module"), "No module named 'no_such_module'"),
        (("return x, np", "return 1, np"), "contains a single number"),
    ],
)
def test_a_wrong_model_module_is_reported_before_any_worker_starts(
    change: tuple[str, str], message: str, tmp_path: Path
) -> None:
    model = write(tmp_path / "my_model.py", MODEL.replace(*change))
    with Job(tmp_path, command=(f"--model={model}",)) as job:
        job.finish(exit_code=2)
        assert message in job.output
        assert "Traceback" not in job.output
        assert job.events() == []


@pytest.mark.parametrize("place", ["import keras, numpy as np", "def model():"])
def test_a_module_that_ends_the_program_in_a_worker_is_told_so(tmp_path: Path, place: str) -> None:
    indent = "    " if place.startswith("def") else ""
    ends = f"{indent}import os, sys\n{indent}if 'HVD_ELASTIC_WORKER_ID' in os.environ: sys.exit(0)"
    model = write(tmp_path / "my_model.py", MODEL.replace(place, f"{place}\n{ends}"))
    with Job(tmp_path, "--num_workers=2", command=(f"--model={model}",)) as job:
        job.finish(exit_code=2)
        assert f"The model module {model} failed in a worker" in job.output
        assert "It ended the program (exit code 0)" in job.output
        assert "--model" not in job.output


def test_an_error_of_the_models_own_step_ends_the_job_and_is_shown(tmp_path: Path) -> None:
    text = (
        MODEL
        + """
class Broken(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise ArithmeticError("this model is broken")

def callbacks():
    return [Broken()]
"""
    )
    model = write(tmp_path / "my_model.py", text)
    with Job(tmp_path, "--num_workers=2", command=(f"--model={model}",)) as job:
        job.finish(exit_code=1)
        assert "ArithmeticError: this model is broken" in job.output
        assert "by an error of their own" in job.output
        assert len(job.events("worker_exited")) <= 8  # long before all 10 restarts are used up


def test_data_that_are_others_each_time_are_refused_with_the_remedy(tmp_path: Path) -> None:
    text = MODEL.replace('np.ones((64, 2), "float32")', "np.random.default_rng().random((64, 2))")
    with Job(tmp_path, command=(f"--model={write(tmp_path / 'my_model.py', text)}",)) as job:
        job.finish(exit_code=2)
        assert "Seed every random part" in job.output
        assert job.events() == []
