"""Jobs whose workers are forked from a process that has imported TensorFlow, and those of others.

Nearly all jobs of the other tests are such jobs, too.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.harness.faults import Fault
from tests.harness.job import FAULT_MODEL, SMALL, Job, assert_same_weights

SERVER = "fork_server_main.py"
SCRIPT = """
import json
import os
import sys

{first}
import tensorflow as tf
from tensorflow.python.util import _pywrap_util_port
import keras
import numpy as np
from hvd_elastic_keras import ElasticCallback

layers = [keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)]
model = keras.Sequential([keras.Input((3,)), *layers])
drawn = [float(np.random.rand()), float(layers[0].kernel[0, 0]), float(tf.random.uniform(()))]
keras.utils.set_random_seed(1)
model.compile("sgd", "mse")
x = np.arange(96, dtype="float32").reshape(32, 3) / 96
model.fit(x, x.sum(1, keepdims=True), batch_size=8, epochs=1, callbacks=[ElasticCallback()])
facts = {{
    "onednn": _pywrap_util_port.IsMklEnabled(),
    "drawn": drawn,
    "arguments": sys.argv[1:],
    "threads": tf.config.threading.get_intra_op_parallelism_threads(),
    "command": open("/proc/self/cmdline").read().split("\\0")[1],
    "loss": float(model.evaluate(x, x.sum(1, keepdims=True), verbose=0)),
}}
with open(sys.argv[1] + os.environ["HVD_ELASTIC_WORKER_ID"], "w") as file:
    json.dump(facts, file)
"""


def uses_onednn_by_default() -> bool:
    """Whether a process that only imports TensorFlow uses oneDNN: it depends on the processor."""
    script = (
        "import tensorflow as tf; from tensorflow.python.util import _pywrap_util_port as port; "
        "print(port.IsMklEnabled())"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    return done.stdout.split()[-1] == "True"


def facts_of(directory: Path, first: str, *flags: str) -> list[dict[str, object]]:
    """What two workers of a script have found, whose first line is `first`."""
    script = directory / "train.py"
    script.write_text(SCRIPT.format(first=first))
    command = ("--num_workers=2", *flags, str(script), f"{directory}/facts_")
    with Job(directory, command=command) as job:
        job.finish()
    return [json.loads((directory / f"facts_w{n}").read_text()) for n in range(2)]


@pytest.mark.parametrize(
    ("first", "flags", "forked", "onednn"),
    [
        ("", (), True, True),
        ("os.environ['TF_ENABLE_ONEDNN_OPTS'] = '0'", (), False, False),
        ("", ("--nofork_server",), False, True),
    ],
)
def test_workers_of_a_script_compute_as_if_each_had_imported_tensorflow(
    tmp_path: Path, first: str, flags: tuple[str, ...], forked: bool, onednn: bool
) -> None:
    found = facts_of(tmp_path, first, *flags)
    for facts in found:
        assert Path(str(facts["command"])).name == (SERVER if forked else "train.py")
        assert facts["onednn"] is (onednn and uses_onednn_by_default())
        assert facts["arguments"] == [f"{tmp_path}/facts_"]
    of_w0, of_w1 = (facts["drawn"] for facts in found)
    assert isinstance(of_w0, list)
    assert isinstance(of_w1, list)
    # Nobody had set a seed there.
    assert all(a != b for a, b in zip(of_w0, of_w1, strict=True))
    assert found[0]["loss"] == found[1]["loss"]


def is_server(process: psutil.Process) -> bool:
    return any(Path(word).name == SERVER for word in process.cmdline())


def test_replacements_are_forked_as_long_as_the_server_lives(
    tmp_path: Path, expected_weights: dict[str, np.ndarray]
) -> None:
    gate = Fault("gate", "train", 0, step=3, action="wait")
    with Job(tmp_path, "--num_workers=3", "--audit", plan=[gate]) as job:
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
    """It prints what it has imported by itself: little."""
    model = tmp_path / "model.py"
    model.write_text(
        FAULT_MODEL.read_text()
        + "\nfrom pathlib import Path as P\n"
        + f"with open({str(tmp_path / 'commands')!r}, 'a') as f:\n"
        + "    f.write(P('/proc/self/cmdline').read_text().split('\\0')[1] + '\\n')\n"
    )
    with Job(tmp_path, "--num_workers=1", command=(f"--model={model}", *SMALL)) as job:
        job.finish()
    commands = [Path(c).name for c in (tmp_path / "commands").read_text().split()]
    assert commands == [SERVER, SERVER]
