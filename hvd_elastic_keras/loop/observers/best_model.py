"""Keeps the best model of a training, by a metric that `--keep_best` names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path

import keras

from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.common.events import BestModelSaved
from hvd_elastic_keras.loop.callback_runner import CallbackRunner
from hvd_elastic_keras.loop.kept_on_disk import save_model
from hvd_elastic_keras.loop.observer import EndedEpoch, Observer, Round
from hvd_elastic_keras.loop.schedule import Schedule
from hvd_elastic_keras.state.cursor import Phase
from hvd_elastic_keras.state.run_state import RunState

VALIDATION = "val_"
LOGS = ("train_step", "test_step", "compute_metrics", "get_metrics_result")
"""Methods of a model that make the logs of an epoch."""


class BestModel(Observer):
    """Has rank 0 save the model after each epoch that is the best one so far.

    All workers wait meanwhile. If rank 0 is lost before the file is there, the next rank 0 saves
    it, since all have the same state. Which epoch is the best follows from the history, which is
    part of that state.

    Args:
      asked: the metric, as `--keep_best` names it.
      directory: where the files go.
      tell: shows a line and records an event.
      warn: shows a text.
    """

    def __init__(
        self,
        asked: str,
        directory: Path,
        *,
        model: keras.Model,
        schedule: Schedule,
        callbacks: CallbackRunner,
        state: RunState,
        tell: Callable[[str, BestModelSaved], None],
        warn: Callable[[str], None],
    ) -> None:
        self._metric, _, direction = asked.partition(":")
        self._direction = direction or direction_of(self._metric, model)
        self._directory = directory
        self._model = model
        self._schedule = schedule
        self._history = callbacks.history
        self._state = state
        self._tell = tell
        self._warn = warn
        self._is_root = False
        self._said: set[str] = set()

    def on_running(self, entered: Round) -> None:
        """Saves what a lost rank 0 may not have saved."""
        self._is_root = entered.place.rank == 0
        cursor = self._state.cursor
        # Only then are the variables still those of the end of an epoch.
        is_between = cursor.step == 0 and cursor.phase is not Phase.EVALUATE
        if is_between and not self._state.marks.ended and self._history.epoch:
            last = self._history.epoch[-1]
            if not self._metric.startswith(VALIDATION) or self._schedule.evaluates_after(last):
                self._save_if_best(last)

    def after_epoch(self, epoch: EndedEpoch) -> None:
        """Saves the model if it is the best one so far."""
        is_evaluated = self._schedule.evaluates_after(epoch.cursor.epoch)
        if isinstance(epoch.logs.get(self._metric), int | float):
            self._save_if_best(epoch.cursor.epoch)
        elif self._is_root and is_evaluated:
            numbers = sorted(n for n, v in epoch.logs.items() if isinstance(v, int | float))
            what = f"the numbers of an epoch are {', '.join(numbers)}"
            self._say_once(f"warning: keep_best={self._metric} keeps nothing: {what}\n")

    def _save_if_best(self, epoch: int) -> None:
        if not self._is_root:
            return
        values = self._history.history.get(self._metric, [])
        if not values or best_of(values, self._direction) != len(values) - 1:
            return
        value, step = float(values[-1]), self._state.cursor.global_step
        found = {"metric": self._metric, "value": value, "epoch": epoch, "step": step}
        record = self._directory / files.BEST_RECORD
        if files.read_json(record) == found:
            return
        names = files.BEST, files.BEST_WEIGHTS
        path = save_model(self._directory, self._model, self._say_once, names)
        if path is not None:
            try:
                files.write_json(record, found)
            except OSError as error:
                self._say_once(f"warning: {record.name} could not be saved: {error.strerror}\n")
            what = f"{self._metric} {value:.4g}; kept in {path.name}"
            entry = BestModelSaved(
                metric=self._metric, value=value, epoch=epoch, step=step, path=str(path)
            )
            self._tell(f"epoch {epoch + 1} is the best so far: {what}", entry)

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._warn(text)


def best_of(values: Sequence[float], direction: str) -> int:
    """Returns the number of the best value, the first of equal ones; -1 if none is finite.

    >>> best_of([0.3, 0.2, float("nan"), 0.2], "min")
    1
    """
    finite = [
        i for i, value in enumerate(values) if isinstance(value, int | float) and isfinite(value)
    ]
    choose = min if direction == "min" else max
    return choose(finite, key=lambda i: values[i], default=-1)


def check(asked: str, model: keras.Model, *, evaluates: bool, has_directory: bool) -> None:
    """Checks before the first step that there will be such a metric.

    Args:
      asked: see `BestModel`.
      model: a model whose metrics have been used.
      evaluates: whether there are validation data.
      has_directory: whether there is a directory for the file.

    Raises:
      ConfigurationError: nothing could be kept.
    """
    metric, colon, _ = asked.partition(":")
    if not has_directory:
        raise ConfigurationError(
            f"keep_best={asked} was given, but this training has no job directory, or is a part of "
            "elastic.run. Use keras.callbacks.ModelCheckpoint(path, save_best_only=True)."
        )
    if metric.startswith(VALIDATION) and not evaluates:
        raise ConfigurationError(
            f"keep_best={asked} was given, but there are no validation data. Give some, or choose "
            "a metric of the training, such as loss."
        )
    names = list(model.get_metrics_result())
    makes_own_logs = any(getattr(type(model), n) is not getattr(keras.Model, n) for n in LOGS)
    if metric.removeprefix(VALIDATION) not in names and not makes_own_logs:
        raise ConfigurationError(
            f"keep_best={asked} was given, expected one of the metrics of the model: "
            f"{', '.join(names)}, or one of these after {VALIDATION}."
        )
    if not colon:
        direction_of(metric, model)


def direction_of(metric: str, model: keras.Model) -> str:
    """Returns "min" or "max": the direction in which Keras takes a metric to get better.

    Raises:
      ConfigurationError: Keras does not know.
    """
    stopping = keras.callbacks.EarlyStopping(monitor=metric)
    stopping.set_model(model)
    stopping.on_train_begin()
    try:
        stopping.on_epoch_end(0, {metric: 0.0})
    except ValueError as error:
        raise ConfigurationError(
            f"keep_best={metric} was given, but Keras does not know whether a small or a large "
            f"value is better. Write keep_best={metric}:min or keep_best={metric}:max."
        ) from error
    return "min" if stopping.monitor_op(0.0, 1.0) else "max"
