"""Horovod's Keras callbacks, for `fit`: those of `hvd.elastic` and of `hvd.callbacks`.

Each does what it did, or says in one line why there is nothing to do. A `fit` with any of them is
elastic; see `horovod_fit.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from hvd_elastic_keras.api.callback import ElasticCallback
from hvd_elastic_keras.api.elastic_state import ElasticState
from hvd_elastic_keras.api.horovod_fit import HorovodCallback, needs_function, tell_once
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.step.world import World, world_of_process


class StateCallback(HorovodCallback):
    """A callback that keeps an elastic state up to date."""

    __slots__ = ("state",)  # not among the attributes that other workers get
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
    """Calls `commit` after so many batches and after each epoch.

    In `fit` every step is as safe as after a commit, so that `state.commit()` does nothing there.
    """

    def __init__(self, state: ElasticState, batches_per_commit: int = 1) -> None:
        super().__init__(state)
        self.batches_per_commit = self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Counts anew."""
        self.batches_remaining = self.batches_per_commit

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts batches."""
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.commit()
            self.batches_remaining = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commits."""
        self.commit()

    def commit(self) -> None:
        """For subclasses."""
        self.state.commit()


class UpdateBatchStateCallback(StateCallback):
    """Keeps the number of the last batch in `state.batch`, and 0 after each epoch."""

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Sets the value."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Sets the value."""
        self.state.batch = 0


class UpdateEpochStateCallback(StateCallback):
    """Counts epochs in `state.epoch`, from its value at the beginning on."""

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
    """All workers have the state of rank 0 in any case."""

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
    """Metrics are those of all workers in any case."""

    def __init__(self, device: str = "") -> None:
        super().__init__()
        tell_once("MetricAverageCallback has nothing to do: logs are those of all workers")


class LearningRateScheduleCallback(HorovodCallback):
    """Sets the learning rate to `initial_lr * multiplier(epoch)`, for the batch of all workers.

    Args:
      initial_lr: as computed beside `hvd.init()`, where `hvd.size()` is 1: it is multiplied by the
        number of workers.
      multiplier: a factor for each epoch from `start_epoch` on, or a function of the epoch, which
        has fractions unless `staircase`.
      start_epoch, end_epoch: it acts from the first one up to, but not including, the other.
      staircase: whether the rate changes between epochs only.
      momentum_correction: has no effect: the momentum of Keras 3 is a fixed number.
      steps_per_epoch: ignored; it is known.
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
        """The factor at a point of the training."""
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
        """Reset callbacks may have changed the rate."""
        self._due = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch."""
        self.current_epoch, self._due = epoch, True

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the rate."""
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
    """Brings the learning rate from `initial_lr` to that times the number of workers.

    Goyal et al. 2017, "Accurate, Large Minibatch SGD", arXiv:1706.02677.
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
        """The factor at a point of the warm-up; the whole of it after the last step."""
        size, epochs = self.size, self.end_epoch or 1
        epoch = min(epochs, epoch + size / (self._batches or 1))
        return (epoch * (size - 1) / epochs + 1) / size

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Says that it is over."""
        super().on_epoch_end(epoch, logs)
        if self.verbose and self.end_epoch == epoch + 1:
            rate = float(self.model.optimizer.learning_rate) * self._factor_elsewhere
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Horovod's for Spark, which has no file."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise ConfigurationError(
            "hvd.callbacks.BestModelCheckpoint is for Horovod on Spark. Write "
            "keras.callbacks.ModelCheckpoint(path, save_best_only=True); rank 0 saves."
        )
