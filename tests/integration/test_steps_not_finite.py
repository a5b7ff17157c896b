"""At a loss that is NaN or infinite, the job stops or skips the step, as asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness import warm_python
from tests.harness.job import Job, assert_same_weights, read_weights

DIVERGES = """
import keras, numpy as np
from hvd_elastic_keras import ElasticCallback

keras.utils.set_random_seed(1)
x = np.arange(64, dtype="float32").reshape(16, 4)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(1e6), "mse")
model.fit(x, x[:, 0], batch_size=4, epochs=5, callbacks=[ElasticCallback()])
print("went on")
"""


def test_a_job_stops_there_if_it_is_asked_to(tmp_path: Path) -> None:
    script = tmp_path / "diverges.py"
    script.write_text(DIVERGES)
    flags = ("--num_workers=2", "--on_nonfinite=stop")
    with Job(tmp_path, *flags, command=(str(script),)) as job:
        job.finish(exit_code=1)
        (error,) = [line for line in job.output.splitlines() if line.startswith("error: ")]
        assert "Not finite: loss inf in step 2 (from 0; epoch 1)" in error
        assert "went on" not in job.output
        assert "Traceback" not in job.output
        assert len(job.events("worker_started")) == 2


HAS_A_BROKEN_BATCH = """
import sys
import keras, numpy as np
from hvd_elastic_keras import ElasticCallback

path, plain = sys.argv[1], "plain" in sys.argv
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
y = x[:, :1].copy()
x[21] = np.nan
if plain:
    x, y = (np.delete(a, range(16, 24), axis=0) for a in (x, y))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1, momentum=0.5), "mse")
callbacks = [] if plain else [ElasticCallback(micro_batch_size=2)]
fit = dict(batch_size=8, epochs=2, shuffle=False, verbose=0)
losses = model.fit(x, y, **fit, callbacks=callbacks).history["loss"]
print("losses", *(f"{loss:.5f}" for loss in losses))
model.save(path)
"""


@pytest.mark.slow(but=("--audit",))
@pytest.mark.parametrize("flag", ["--audit", "--deterministic"])
def test_such_a_step_is_left_out_by_all_workers_alike(tmp_path: Path, flag: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(HAS_A_BROKEN_BATCH)
    found, expected = tmp_path / "found.keras", tmp_path / "expected.keras"
    flags = ("--num_workers=3", "--on_nonfinite=skip", "--check_weights_every_n_steps=1", flag)
    with Job(tmp_path, *flags, command=(str(script), str(found))) as job:
        job.finish()
        told = [line for line in job.output.splitlines() if line.startswith("warning: step")]
        assert [line.partition(":")[2].partition(" (")[0] for line in told] == [
            " step 2",
            " step 7",
        ]
        assert "Traceback" not in job.output
        if flag == "--audit":
            job.assert_audited(epochs=2)
        plain = warm_python.run(script, expected, "plain", log=tmp_path / "plain.log")
        assert plain.splitlines()[-1] in job.output
    assert_same_weights(read_weights(found, tmp_path), read_weights(expected, tmp_path))
