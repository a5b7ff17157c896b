"""The state of callbacks goes to the callbacks of the same kind, whichever others there are."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import Trainer, TrainingConfig
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.loop.callback_runner import CallbackRunner

X = np.arange(16, dtype="float32").reshape(8, 2) / 16
c = keras.callbacks


class Counts(c.Callback):
    """Counts epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs += 1


class CountsToo(Counts):
    """Another kind of callback."""


def train(job_dir: Path, epochs: int, *callbacks: Any) -> tuple[dict[str, list[float]], str]:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    config = TrainingConfig(global_batch_size=4, micro_batch_size=2, epochs=epochs)
    trainer = Trainer(model, (X, X), config=config, job_dir=job_dir, callbacks=list(callbacks))
    with redirect_stdout(io.StringIO()) as output:
        history = trainer.fit().history
    return history, output.getvalue()


@pytest.mark.parametrize(
    ("before", "now", "epochs", "anew"),
    [
        ([Counts], [Counts], [5], ""),
        ([Counts, CountsToo], [CountsToo, Counts], [5, 5], ""),
        ([CountsToo, Counts], [Counts], [5], ""),
        ([Counts], [CountsToo, Counts], [2, 5], "CountsToo"),
        ([Counts], [Counts, Counts], [5, 2], "Counts"),
        ([], [Counts, c.CSVLogger], [2], "Counts"),
    ],
)
def test_a_training_goes_on_with_other_callbacks(
    before: list[Any], now: list[Any], epochs: list[int], anew: str, tmp_path: Path
) -> None:
    def made(kinds: list[Any]) -> list[Any]:
        return [kind(tmp_path / "log.csv") if kind is c.CSVLogger else kind() for kind in kinds]

    train(tmp_path / "job", 3, *made(before))
    callbacks = made(now)
    history, output = train(tmp_path / "job", 5, *callbacks)
    assert [callback.epochs for callback in callbacks if isinstance(callback, Counts)] == epochs
    assert len(history["loss"]) == 5
    warning = f"warning: the state has nothing for the callbacks {anew}, which begin anew"
    assert (warning in output) == bool(anew)


def test_an_unnamed_state_of_other_callbacks_is_refused() -> None:
    model = keras.Sequential()
    state = CallbackRunner([Counts()], model, params={}).state()
    del state["kinds"]
    CallbackRunner([Counts()], model, params={}).restore(state)
    with pytest.raises(ConfigurationError, match="2 callbacks, but now there are 3: Counts, Coun"):
        CallbackRunner([Counts(), CountsToo()], model, params={}).restore(state)
