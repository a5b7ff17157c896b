"""Horovod's Keras callbacks for `fit`, from `hvd.elastic` and `hvd.callbacks`.

Each callback does what it does in Horovod, or says in one line why there is nothing to do. A `fit`
with any of them is elastic; see `fit.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from hvd_elastic_keras.api.callback import ElasticCallback
from hvd_elastic_keras.api.elastic_loop.elastic_state import ElasticState
from hvd_elastic_keras.api.horovod.fit import HorovodCallback, needs_function, tell_once
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.step.world import World, world_of_process


class StateCallback(HorovodCallback):
    """A callback that keeps an elastic state up to date."""

    __slots__ = ("state",)  # attributes in `__slots__` are not sent to other workers
    state: Any

    def __init__(self, state: ElasticState) -> None:
        super().__init__()
        if not isinstance(state, ElasticState):
            raise ConfigurationError(
                f"hvd.elastic.{type(self).__name__} got a {type(state).__name__}, expected an "
                "elastic state: hvd.elastic.KerasState(model, batch=0, epoch=0)."
            )
        self.state = state

    def check(self, elastic: ElasticCallback | None) -> None:
        """See `HorovodCallback`."""
        needs_function(type(self).__name__)


class CommitStateCallback(StateCallback):
    """Calls `commit` after every `batches_per_commit` batches and after each epoch.

    In `fit`, every step is as safe as a commit. Therefore `state.commit()` does nothing there.
    """

    def __init__(self, state: ElasticState, batches_per_commit: int = 1) -> None:
        super().__init__(state)
        self.batches_per_commit = self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Starts counting again."""
        self.batches_remaining = self.batches_per_commit

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts batches and commits if it is time."""
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.commit()
            self.batches_remaining = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commits."""
        self.commit()

    def commit(self) -> None:
        """Commits the state. Subclasses may override this."""
        self.state.commit()


class UpdateBatchStateCallback(StateCallback):
    """Sets `state.batch` to the number of the last batch, and to 0 after each epoch."""

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Sets the value."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Sets the value."""
        self.state.batch = 0


class UpdateEpochStateCallback(StateCallback):
    """Counts epochs in `state.epoch`, starting from its value when training begins."""

    def __init__(self, state: ElasticState) -> None:
        super().__init__(state)
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Notes the value."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Sets the value."""
        self.state.epoch = self.initial_epoch + epoch + 1


class BroadcastGlobalVariablesCallback(HorovodCallback):
    """Has nothing to do: all workers get the state of rank 0 anyway."""

    def __init__(self, root_rank: int = 0, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        if local_variables:
            raise ConfigurationError(
                "BroadcastGlobalVariablesCallback got local_variables, but all workers share one "
                "state here. Leave them out."
            )
        tell_once(
            "BroadcastGlobalVariablesCallback has nothing to do: fit gives everybody the state of "
            "rank 0"
        )


class MetricAverageCallback(HorovodCallback):
    """Has nothing to do: logs contain the metrics of all workers anyway."""

    def __init__(self, device: str = "") -> None:
        super().__init__()
        tell_once("MetricAverageCallback has nothing to do: logs are those of all workers")


class LearningRateScheduleCallback(HorovodCallback):
    """Sets the learning rate to `initial_lr * multiplier(epoch)`, for the batch of all workers.

    Args:
      initial_lr: the learning rate of one worker, as computed right after `hvd.init()`, where
        `hvd.size()` is 1. It is multiplied by the number of workers.
      multiplier: a function of the epoch, or a number, which is raised to the power `epoch -
        start_epoch`. The epoch has fractions unless `staircase`.
      start_epoch, end_epoch: the callback acts from `start_epoch` up to, but not including,
        `end_epoch`.
      staircase: whether the rate changes between epochs only.
      momentum_correction: has no effect: the momentum of Keras 3 is a fixed number.
      steps_per_epoch: ignored; it is already known.
    """

    __slots__ = ("_batches", "_due", "_multiplier", "_scales", "_world")
    _world: World

    def __init__(  # noqa: PLR0917  Horovod's arguments
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ConfigurationError(
                f"hvd.callbacks.{type(self).__name__} got initial_lr=None. Give the learning rate."
            )
        self.initial_lr = float(initial_lr)
        self.start_epoch, self.end_epoch, self.staircase = start_epoch, end_epoch, staircase
        self.current_epoch = 0
        self._multiplier = multiplier
        self._world = world_of_process()
        self._batches: int | None = None
        self._scales = False
        self._due = True
        if momentum_correction and type(self) is not LearningRateWarmupCallback:
            tell_once("momentum_correction has no effect: the momentum of Keras 3 is fixed")

    @property
    def size(self) -> int:
        """Number of workers."""
        return self._world.size

    def multiplier(self, epoch: float) -> float:
        """Returns the factor at a point of the training."""
        given = self._multiplier
        return given(epoch) if callable(given) else given ** (epoch - self.start_epoch)

    def check(self, elastic: ElasticCallback | None) -> None:
        """See `HorovodCallback`."""
        if elastic is not None and not elastic.batch_grows:
            raise ConfigurationError(
                f"hvd.callbacks.{type(self).__name__} is for a batch that grows with the workers, "
                "but ElasticCallback() keeps the batch of all workers together. Leave one of the "
                "two out, or take keras.callbacks.LearningRateScheduler."
            )

    def on_training(self, batches_per_epoch: int | None, scales: bool) -> None:
        """See `HorovodCallback`."""
        self._batches, self._scales = batches_per_epoch, scales
        if batches_per_epoch is None and not self.staircase:
            raise ConfigurationError(
                f"hvd.callbacks.{type(self).__name__} sets the learning rate in each step, but "
                "nobody knows how many steps an epoch of this data has. Give steps_per_epoch to "
                "fit, or assert_cardinality(n) to the dataset."
            )

    def on_train_begin(self, logs: Any = None) -> None:
        """Sets the rate again at the next batch: reset callbacks may have changed it."""
        self._due = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch."""
        self.current_epoch, self._due = epoch, True

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the rate if it is due."""
        ended = self.end_epoch is not None and self.current_epoch >= self.end_epoch
        if ended or self.current_epoch < self.start_epoch:
            return
        if self._due or not self.staircase:
            self._due = False
            self._set(self._point(batch))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Logs the rate, as `lr`."""
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate) * self._factor_elsewhere

    @property
    def _factor_elsewhere(self) -> int:
        return self.size if self._scales else 1

    def _point(self, batch: int) -> float:
        if self.staircase or not self._batches:
            return self.current_epoch
        return self.current_epoch + min(1.0, batch * self.size / self._batches)

    def _set(self, epoch: float) -> None:
        rate = self.initial_lr * self.size * self.multiplier(epoch)
        self.model.optimizer.learning_rate = rate / self._factor_elsewhere


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from `initial_lr` to `initial_lr` times the number of workers.

    Source: Goyal et al. 2017, "Accurate, Large Minibatch SGD", arXiv:1706.02677.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            initial_lr,
            1.0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
        )
        self.verbose = verbose

    def multiplier(self, epoch: float) -> float:
        """Returns the factor at a point of the warm-up: 1 after the last step."""
        size, epochs = self.size, self.end_epoch or 1
        epoch = min(epochs, epoch + size / (self._batches or 1))
        return (epoch * (size - 1) / epochs + 1) / size

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Prints a line when the warm-up is over, if `verbose`."""
        super().on_epoch_end(epoch, logs)
        if self.verbose and self.end_epoch == epoch + 1:
            rate = float(self.model.optimizer.learning_rate) * self._factor_elsewhere
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Always raises an error: Horovod's class is for Spark and takes no file."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise ConfigurationError(
            "hvd.callbacks.BestModelCheckpoint is for Horovod on Spark. Write "
            "keras.callbacks.ModelCheckpoint(path, save_best_only=True); rank 0 saves."
        )
