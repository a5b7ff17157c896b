"""Scripts that do not know this package train elastically under `run`, with the same numbers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness import user_scripts
from tests.harness.job import Job

KILLED = (
    "habits/kfold_clear_session.py",
    "images/flowers_from_folder.py",
    "sequences/stateful_lstm.py",
    "tables/penguins_csvdataset.py",
)
"""Scripts whose numbers plain Keras gives again, given its seed."""
OTHERWISE = (
    "habits/mirrored_strategy.py",
    "images/cached_augmentation.py",
    "images/cutmix.py",
    "images/tfrecords_interleave.py",
)
"""Scripts with other numbers than plainly, but the same for any workers.

They draw in parallel calls, which are other numbers in each plain run, or have a strategy of
TensorFlow, which orders the data in its own way.
"""


@pytest.mark.slow(but=("images/flowers_from_folder.py",))
@pytest.mark.parametrize("name", KILLED)
def test_a_script_prints_the_same_with_three_workers_of_which_one_is_killed(
    name: str, tmp_path: Path
) -> None:
    wanted = user_scripts.plain(tmp_path / "plain", name)
    job = user_scripts.job(tmp_path / "job", name, 3, killed="w1")
    assert user_scripts.difference(wanted, job.printed()) == ""
    is_told = "each worker computes whole batches" in job.output
    assert is_told == (name == "sequences/stateful_lstm.py")


@pytest.mark.slow(but=("images/cutmix.py",))
@pytest.mark.parametrize("name", OTHERWISE)
def test_a_script_with_numbers_of_its_own_prints_the_same_with_any_workers(
    name: str, tmp_path: Path
) -> None:
    kind = user_scripts.WarmScriptJob  # the test above starts Python anew
    wanted = user_scripts.job(tmp_path / "one", name, 1, kind=kind).printed()
    found = user_scripts.job(tmp_path / "three", name, 3, kind=kind).printed()
    assert user_scripts.difference(wanted, found) == ""


CHANCE = """
import json, os, random, sys
import numpy as np

if len(sys.argv) > 1:
    import keras
    keras.utils.set_random_seed(int(sys.argv[1]))
worker = os.environ.get("HVD_ELASTIC_WORKER_ID", "alone")
drawn = {
    "random": random.random(),
    "numpy": np.random.rand(),
    "generators": [np.random.default_rng().random() for _ in range(2)],
    "seeded generator": np.random.default_rng(3).random(),
}
import tensorflow as tf
drawn["tensorflow"] = float(tf.random.normal(()))
numbers = tf.data.Dataset.range(12)
drawn["shuffle"] = [int(x) for x in numbers.shuffle(12)]
drawn["seeded shuffle"] = [int(x) for x in numbers.shuffle(12, seed=42)]
drawn["hash"] = hash("text"), list({"one", "two", "three", "four"})

import keras
from keras import layers
drawn["keras"] = float(keras.random.uniform(()))
drawn["after imports"] = random.random(), np.random.rand()
model = keras.Sequential([keras.Input((2,)), layers.Dense(1), layers.Dropout(0.5)])
drawn["weights"] = model.get_weights()[0].tolist()

class Written:
    def __array__(self, dtype=None, copy=None):
        with open("written.txt", "a") as file:
            file.write(worker + "\\n")
        return np.arange(3)

class Losses(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.batches = []
    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(logs["loss"])
    def on_epoch_end(self, epoch, logs=None):
        np.save(f"epoch{epoch}", Written())

model.compile(keras.optimizers.SGD(0.0), "mse")
losses = Losses()
x = np.arange(32, dtype="float32").reshape(16, 2)
model.fit(x, x[:, :1], batch_size=4, epochs=2, callbacks=[losses])
drawn["batches"] = losses.batches
np.save("end.npy", Written())
assert np.load("end.npy").tolist() == [0, 1, 2]
with open(f"{worker}.json", "w") as file:
    json.dump(drawn, file)
"""


def chance(directory: Path, *arguments: str, run: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Runs the script above and returns what each process has drawn."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "script.py").write_text(CHANCE)
    command = [sys.executable, *run, "script.py", *arguments]
    done = subprocess.run(
        command,
        cwd=directory,
        env=user_scripts.environment() if not run else {**user_scripts.environment(), **UNHASHED},
        capture_output=True,
        text=True,
        timeout=user_scripts.LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(p.read_text()) for p in sorted(directory.glob("*.json"))]


def output_of(*arguments: str, folder: Path) -> str:
    """Runs Python with these arguments and returns its output."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=user_scripts.environment(),
        capture_output=True,
        text=True,
        timeout=user_scripts.LIMIT_S,
        check=True,
    ).stdout


UNHASHED = {"PYTHONHASHSEED": ""}
"""As if not set: an empty text means a random seed for Python."""
RUN = ("-m", "hvd_elastic_keras.run", "--num_workers=2", "--job_dir=job")
WITHOUT_SEED = {
    *("random", "numpy", "generators", "tensorflow", "shuffle", "keras", "weights", "batches"),
    "after imports",
}


def test_all_workers_draw_the_same(tmp_path: Path) -> None:
    first, other = chance(tmp_path / "first", run=RUN)
    assert first == other
    assert first["generators"][0] != first["generators"][1]
    half = len(first["batches"]) // 2
    assert sorted(first["batches"][:half]) != sorted(first["batches"][half:])  # other batches
    written = (tmp_path / "first" / "written.txt").read_text().split()
    assert len(written) == 3  # once after each epoch and once at the end

    # The seed is kept: another start of the job draws the same.
    seed = json.loads((tmp_path / "first" / "job" / "job.json").read_text())["seed"]
    shown = output_of(*RUN, "--dry_run", "script.py", folder=tmp_path / "first")
    assert f"seed: {seed}, as when this job was started" in shown
    plain = chance(tmp_path / "plain")[0]
    for name, value in first.items():
        if name not in {*WITHOUT_SEED, "hash"}:
            assert value == plain[name], name  # what has a seed is as without a job
    assert all(first[name] != plain[name] for name in WITHOUT_SEED)


def test_a_given_seed_is_that_of_keras(tmp_path: Path) -> None:
    found = chance(tmp_path / "job", run=(*RUN, "--seed=5"))[0]
    plain = chance(tmp_path / "plain", "5")[0]
    for name, value in found.items():
        if name == "batches":
            assert value == pytest.approx(plain[name], rel=1e-5)
        elif name not in ("generators", "hash"):
            assert value == plain[name], name


NOT_TRAINED = """
import keras, numpy as np
{first}
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.zeros((8, 2)), np.zeros(8))
print("the script goes on")
"""


@pytest.mark.parametrize(
    ("flags", "first"),
    [(("--noelastic_fit",), ""), ((), "from hvd_elastic_keras import ElasticCallback")],
)
def test_a_script_that_decides_itself_is_told_that_nothing_was_elastic(
    flags: tuple[str, ...], first: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(NOT_TRAINED.format(first=first))
    with Job(tmp_path, "--num_workers=2", *flags, command=(str(script),)) as job:
        job.finish(exit_code=1)
        ended = re.search(
            r"(\w+) ended without having trained. A script must call model.fit", job.output
        )
        assert ended
        # The other worker is stopped then: the console may not show what w0 had still to print.
        log = job.job_dir / "logs" / f"{ended[1]}.log"
        assert "the script goes on" in log.read_text()


REFUSED = {
    "no compile": ("", "compile"),
    "an error of the script": ("1 / 0", "ZeroDivisionError"),
}


@pytest.mark.slow(but=("no compile",))
@pytest.mark.parametrize("case", REFUSED)
def test_a_fit_that_cannot_be_elastic_ends_before_its_first_step(case: str, tmp_path: Path) -> None:
    line, text = REFUSED[case]
    script = tmp_path / "script.py"
    script.write_text(NOT_TRAINED.format(first="").replace('model.compile("sgd", "mse")', line))
    with Job(tmp_path, "--num_workers=2", "--max_restarts=1", command=(str(script),)) as job:
        assert job.process.wait(job.limit_s) != 0
        job.assert_nothing_is_left(job.address())
        assert "the script goes on" not in job.output
        assert re.search(text, job.output)
        assert "script_main" not in job.output


TAKEN_AND_SKIPPED = """
import keras, numpy as np, tensorflow as tf
keras.utils.set_random_seed(3)
x = np.random.rand(200, 5).astype("float32")
y = (x.sum(1) > 2.5).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, y)).map(lambda a, b: (a * 2 - 1, b)).shuffle(200)
train, validation = data.take(150).shuffle(50).batch(16), data.skip(150).batch(16)
model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1, "sigmoid")])
model.compile("adam", "binary_crossentropy")
history = model.fit(train, validation_data=validation, epochs=5, validation_freq=2, verbose=0)
print(history.history["loss"], history.history["val_loss"])
"""


def test_two_parts_of_one_shuffled_dataset_are_read_as_in_plain_keras(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TAKEN_AND_SKIPPED)
    plain = output_of("script.py", folder=tmp_path)
    with Job(tmp_path, "--num_workers=2", command=(str(script),)) as job:
        job.finish()
        shown = [line[5:] for line in job.output.splitlines() if line.startswith("[w0] [")]
        assert "as in plain fit" in job.output
    assert user_scripts.difference(plain.splitlines(), shown) == ""
