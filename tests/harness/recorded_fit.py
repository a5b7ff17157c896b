"""`fit` as a scenario calls it: with `ElasticCallback` and with callbacks that record."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np

from hvd_elastic_keras import ElasticCallback
from tests.harness import fault_model, faults
from tests.harness.small_classifier import X

HOOKS = tuple(
    f"on_{moment}_{end}"
    for moment in ("train", "epoch", "train_batch", "test", "test_batch")
    for end in ("begin", "end")
)


class Hooks(keras.callbacks.Callback):
    """Records all hooks with their logs. A late joiner gets the list with the state."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []


class Tracker:
    """An object of a class of the user's own."""

    def __init__(self) -> None:
        self.losses: list[float] = []


class Remembers(keras.callbacks.Callback):
    """Keeps values of many types. A late joiner gets the same values."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()
        self.counts = {(0, True): 0}
        self.last: collections.deque[int] = collections.deque(maxlen=2)
        self.rng = np.random.default_rng(5)
        self.draws: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen.add(epoch)
        self.counts[0, True] += 1
        self.last.append(epoch)
        self.draws.append(self.rng.random())

    def known(self) -> Any:
        """Returns all of its values as JSON."""
        return [sorted(self.seen), self.counts[0, True], list(self.last), self.draws]


class SaysItself(keras.callbacks.Callback):
    """Keeps an object, and defines how to save and set its state."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = Tracker()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.tracker.losses.append(float(logs["loss"]))

    def get_state(self) -> Any:
        """Returns the state for a worker that joins later."""
        return self.tracker.losses

    def set_state(self, state: Any) -> None:
        """Sets the state on that worker."""
        self.tracker.losses = state


class Forgets(keras.callbacks.Callback):
    """Keeps an object, and does not define how to save its state."""

    def __init__(self) -> None:
        super().__init__()
        self.trackers = [Tracker()]


def _recording(name: str) -> Any:
    def hook(self: Hooks, *position: int, logs: Any = None) -> None:
        self.calls.append([name, *(_plain(a) for a in (*position, logs) if a not in (None, {}))])

    return hook


for _name in HOOKS:
    setattr(Hooks, _name, _recording(_name))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(v) for name, v in value.items()}
    return np.asarray(value).tolist()


class Script:
    """A user's script in one process, and its results.

    Attributes:
      worker: the id of this worker; "alone" without a launcher.
      files: a directory for the callbacks' files, the same for all workers.
    """

    def __init__(self, directory: Path, plain: bool) -> None:
        self.worker = fault_model.worker_id()
        self.files = directory / "files"
        self.files.mkdir(parents=True, exist_ok=True)
        self._result = directory / self.worker
        self._elastic = self.worker != "alone" or not plain
        self._model: keras.Model | None = None
        names = ("histories", "hooks", "states", "evaluations", "predictions", "remembered")
        self._logs: dict[str, list[Any]] = {name: [] for name in names}

    def fit(
        self,
        model: keras.Model,
        *data: Any,
        callbacks: tuple[keras.callbacks.Callback, ...] = (),
        **arguments: Any,
    ) -> None:
        """Calls `model.fit` with these arguments."""
        self._model = model
        fault_model.watch(model)
        sizes: list[tuple[int, int]] = []
        ours = ElasticCallback(
            micro_batch_size=4, on_membership_change=lambda old, new: sizes.append((old, new))
        )
        ours.state.losses = []
        counting = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: ours.state.losses.append(logs["loss"])
        )
        hooks, remembers, says = Hooks(), Remembers(), SaysItself()
        elastic = [ours] if self._elastic else []
        added = [hooks, *elastic, counting, remembers, says, Forgets()]
        history = model.fit(*data, **arguments, callbacks=[*added, *callbacks], verbose=2)
        print("world sizes", sizes)
        self._logs["states"].append(_plain(ours.state.losses))
        self._logs["histories"].append({"epoch": history.epoch, **_plain(history.history)})
        self._logs["hooks"].append(hooks.calls)
        self._logs["remembered"].append([remembers.known(), says.tracker.losses])

    def evaluate_and_predict(self, model: keras.Model) -> None:
        """Evaluates and predicts between two trainings, as users do."""
        logs = model.evaluate(X[:50], np.zeros(50), verbose=0, return_dict=True)
        self._logs["evaluations"].append(_plain(logs))
        self._logs["predictions"].append(_plain(model.predict(X[:5], verbose=0)))

    def let_fail(self, point: str) -> None:
        """Lets a fault kill a worker here, outside of any training."""
        if self.worker != "alone":
            faults.happen(point, int(self.worker[1:]), 0)

    def write(self) -> None:
        """Writes the variables and the logs for the test."""
        assert self._model is not None, "a scenario calls fit"
        variables = [*self._model.variables, *self._model.optimizer.variables]
        kept = [v for v in variables if "seed_generator" not in v.path]
        np.savez(
            self._result.with_suffix(".npz"),
            **{f"{i} {v.path.replace('/', ' ')}": np.asarray(v) for i, v in enumerate(kept)},
        )
        self._result.with_suffix(".json").write_text(json.dumps(self._logs))
