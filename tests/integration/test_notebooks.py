"""Notebooks in a real kernel: training alone, and a function on elastic workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

import nbformat
from jupyter_client.manager import start_new_kernel

LIMIT_S = 110

PREPARE = """
import keras
import hvd_elastic_keras
from hvd_elastic_keras import ElasticCallback, Trainer, TrainingConfig
from tests.harness.small_classifier import BATCH, LABELS, X, classifier

def make_model():
    keras.utils.set_random_seed(1)
    return classifier()
"""
WITH_CALLBACK = """
history = make_model().fit(
    X, LABELS, batch_size=BATCH, epochs=2, shuffle=False, callbacks=[ElasticCallback()]
)
"""
WITH_TRAINER = """
config = TrainingConfig(global_batch_size=BATCH, epochs=2, shuffle=False)
by_trainer = Trainer(make_model(), (X, LABELS), config=config).fit()
"""
ON_WORKERS = """
def train():
    fitted = make_model().fit(
        X, LABELS, batch_size=BATCH, epochs=2, shuffle=False, callbacks=[ElasticCallback()]
    )
    return fitted.history["loss"]

by_workers = hvd_elastic_keras.run_function(train, num_workers=2, job_dir="job")
"""
COMPARE = """
import numpy as np
alone = history.history["loss"]
assert len(alone) == 2
np.testing.assert_allclose(by_trainer.history["loss"], alone, atol=1e-5)
np.testing.assert_allclose(by_workers, alone, atol=1e-5)
"""
FAILING = """
def prepare(x):
    return x["age"]

def broken():
    return prepare({})

hvd_elastic_keras.run_function(broken, num_workers=1, job_dir="broken")
"""
ENDLESS = """
def train_for_ever():
    make_model().fit(X, LABELS, batch_size=BATCH, epochs=10**6, callbacks=[ElasticCallback()])

hvd_elastic_keras.run_function(train_for_ever, num_workers=1, job_dir="endless")
"""


def executed(directory: Path, *cells: str) -> list[str]:
    """Runs a notebook in its directory; returns the output below each of its cells."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    client = nbclient.NotebookClient(
        notebook, timeout=LIMIT_S, resources={"metadata": {"path": str(directory)}}
    )
    client.execute()
    return ["".join(o.get("text", "") for o in cell.outputs) for cell in notebook.cells]


def test_a_notebook_trains_alone_and_on_workers_to_the_same_loss(tmp_path: Path) -> None:
    shown = executed(tmp_path, PREPARE, WITH_CALLBACK, WITH_TRAINER, ON_WORKERS, COMPARE)

    for cell in (1, 2):
        assert "Epoch 2/2" in shown[cell]
        assert "\x1b[1m6/6" in shown[cell].replace("\x08", ""), "no bar as plain fit has it"
    assert "epoch 2/2 done" in shown[3]
    assert "[elastic] finished after 12 steps; results: job" in shown[3]


def test_an_error_shows_the_lines_of_the_cell(tmp_path: Path) -> None:
    with pytest.raises(nbclient.exceptions.CellExecutionError) as caught:
        executed(tmp_path, PREPARE, FAILING)

    assert "FunctionFailedError" in str(caught.value)
    assert "KeyError: 'age'" in str(caught.value)
    assert 'return x["age"]' in str(caught.value).rpartition("Traceback")[2]


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Any]:
    manager, client = start_new_kernel(cwd=str(tmp_path))
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def shown_until(client: Any, text: str) -> str:
    """Returns the kernel's output once it has this text. Fails if the cell ends before that."""
    shown, deadline = "", time.monotonic() + LIMIT_S
    while text not in shown:
        message = client.get_iopub_msg(timeout=max(0.1, deadline - time.monotonic()))
        content = message["content"]
        shown += content.get("text", "") + content.get("ename", "")
        assert content.get("execution_state") != "idle" or text in shown, shown
    return shown


def test_an_interrupt_of_the_kernel_stops_the_job_and_the_kernel_goes_on(kernel: Any) -> None:
    manager, client = kernel
    client.execute_interactive(PREPARE, timeout=LIMIT_S, output_hook=lambda message: None)
    client.execute(ENDLESS, stop_on_error=False)  # stop_on_error would skip the next cell
    shown_until(client, "done  loss")

    manager.interrupt_kernel()

    assert "[elastic] stopped at step" in shown_until(client, "KeyboardInterrupt")
    client.execute("print('still', 'here')")
    reply = client.get_shell_msg(timeout=LIMIT_S)
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    assert client.get_shell_msg(timeout=LIMIT_S)["content"]["status"] == "ok"
