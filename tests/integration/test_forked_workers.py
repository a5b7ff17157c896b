"""Workers of a model are forked from a process that has imported TensorFlow.

For each worker of a script, Python is started anew, because a script may set variables before it
imports TensorFlow.
"""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import psutil

from tests.harness.faults import Fault
from tests.harness.job import FAULT_MODEL, SMALL, ColdJob, assert_same_weights

SERVER = "hvd_elastic_keras.launchers.fork_server_main"
SCRIPT = """
import os, sys
{first}
from tensorflow.python.util import _pywrap_util_port
import keras
import numpy as np
from hvd_elastic_keras import ElasticCallback

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.arange(96, dtype="float32").reshape(32, 3) / 96
model.fit(x, x.sum(1, keepdims=True), batch_size=8, epochs=1, callbacks=[ElasticCallback()])
with open(sys.argv[1] + os.environ["HVD_ELASTIC_WORKER_ID"], "w") as file:
    print(_pywrap_util_port.IsMklEnabled(), file=file)
"""


def uses_onednn(directory: Path, first: str) -> set[str]:
    """Returns the answers of a script's two workers: whether they compute with oneDNN.

    Args:
      first: the script's first line.
    """
    directory.mkdir()
    script = directory / "train.py"
    script.write_text(SCRIPT.format(first=first))
    command = ("--num_workers=2", str(script), f"{directory}/found_")
    with ColdJob(directory, command=command) as job:
        job.finish()
    return {(directory / f"found_w{n}").read_text().strip() for n in range(2)}


def test_what_a_script_sets_before_it_imports_tensorflow_counts(tmp_path: Path) -> None:
    for value, found in (("0", {"False"}), ("1", {"True"})):
        first = f"os.environ['TF_ENABLE_ONEDNN_OPTS'] = '{value}'"
        assert uses_onednn(tmp_path / value, first) == found


def is_server(process: psutil.Process) -> bool:
    return SERVER in process.cmdline()


def test_replacements_are_forked_as_long_as_the_server_lives(
    tmp_path: Path, expected_weights: dict[str, np.ndarray]
) -> None:
    gate = Fault("gate", "train", 0, step=3, action="wait")
    with ColdJob(tmp_path, "--num_workers=3", "--audit", plan=[gate]) as job:
        job.wait_for_fault("gate")
        (server,) = filter(is_server, psutil.Process(job.process.pid).children())
        others = [w for w in ("w0", "w1", "w2") if w != job.worker_that_had("gate")]
        assert all(is_server(psutil.Process(job.pid_of(w))) for w in others)
        job.signal(others[0], signal.SIGKILL)
        assert is_server(psutil.Process(job.pid_of("w3")))
        server.kill()
        job.signal(others[1], signal.SIGKILL)
        assert not is_server(psutil.Process(job.pid_of("w4")))
        job.plan.open_gate("gate")
        job.finish()
        assert "from now on, workers import TensorFlow by themselves" in job.output
        assert_same_weights(job.weights(), expected_weights)
        job.assert_audited(epochs=3)


def test_the_check_of_a_model_uses_the_imports_of_its_workers(tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text(
        FAULT_MODEL.read_text()
        + "\nfrom pathlib import Path as P\n"
        + f"with open({str(tmp_path / 'commands')!r}, 'a') as f:\n"
        + "    f.write(P('/proc/self/cmdline').read_text().split('\\0')[2] + '\\n')\n"
    )
    with ColdJob(tmp_path, "--num_workers=1", command=(f"--model={model}", *SMALL)) as job:
        job.finish()
    assert (tmp_path / "commands").read_text().split() == [SERVER, SERVER]
