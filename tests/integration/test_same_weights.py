"""A worker with other weights than the others is found, named and replaced."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.harness import warm_python
from tests.harness.job import Job, assert_same_weights, read_weights

CHANGES_ITS_WEIGHTS = """
import sys
import keras, numpy as np
from hvd_elastic_keras import ElasticCallback, is_root

class OneBit(keras.callbacks.Callback):
    # What a damaged memory does, once in the job and on one worker.
    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) != 9 or is_root():
            return
        try:
            open(sys.argv[1], "x").close()
        except FileExistsError:
            return
        weights = self.model.layers[0].kernel.numpy()
        weights.view(np.uint32)[0, 0] ^= 1 << 20
        self.model.layers[0].kernel.assign(weights)

keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.05, momentum=0.5), "mse")
model.fit(x, x[:, :1], batch_size=8, epochs=3, verbose=0, callbacks=[ElasticCallback(), OneBit()])
model.save(sys.argv[2])
"""


@pytest.mark.slow(but=("2",))
@pytest.mark.parametrize("num_workers", [2, 3])
def test_a_worker_with_other_weights_is_replaced_before_it_does_harm(
    tmp_path: Path, num_workers: int
) -> None:
    script, mark = tmp_path / "script.py", tmp_path / "changed"
    script.write_text(CHANGES_ITS_WEIGHTS)
    command = [str(script), str(mark), str(tmp_path / "model.keras")]
    flags = (f"--num_workers={num_workers}", "--check_weights_every_n_steps=3")
    with Job(tmp_path, *flags, command=tuple(command)) as job:
        job.finish()
        (failed,) = [e for e in job.events("worker_exited") if e["failed"]]
        (warning,) = [line for line in job.output.splitlines() if "other weights than" in line]
        assert warning.startswith(f"warning: after step 9, {failed['worker_id']} has other weights")
        assert ("It is unknown" in warning) == (num_workers == 2)
        log = (job.job_dir / "logs" / f"{failed['worker_id']}.log").read_text()
        assert "are not those of the others: it ends" in log
    assert mark.exists()
    found = read_weights(tmp_path / "model.keras", tmp_path)
    assert_same_weights(found, undisturbed(command, tmp_path))


def undisturbed(command: list[str], directory: Path) -> dict[str, np.ndarray]:
    """Returns the weights of the same script in one process, where nothing is changed."""
    warm_python.run(*command, log=directory / "undisturbed.log")
    return read_weights(directory / "model.keras", directory)
