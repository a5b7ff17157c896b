"""The description of a training, which `Trainer` and `ElasticCallback` make."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import keras
import tensorflow as tf

from hvd_elastic_keras.data.input.interfaces import Input
from hvd_elastic_keras.keras_internals.learning_rate import Growth
from hvd_elastic_keras.loop.callback_runner import CallbackRunner
from hvd_elastic_keras.loop.schedule import Schedule
from hvd_elastic_keras.settings.options import NO_OPTIONS, RunOptions
from hvd_elastic_keras.state.checkpoint.manager import Origin
from hvd_elastic_keras.state.parts import UserState


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """Everything that defines a training.

    Attributes:
      model: a model that is built and compiled.
      evaluate: input of the evaluation, if there is one.
      origin: the values in which a checkpoint must agree.
      job_dir: where checkpoints and results go; None keeps nothing.
      cut_is_chosen: whether the user has said how large a micro-batch is.
      options: options from the job and from the training itself.
      growth: how the learning rate follows the number of workers, if the batch grows with them;
        `train` is then a `PerWorkerInput`.
      on_membership_change: called with the old and the new world size.
    """

    model: keras.Model
    schedule: Schedule
    train: Input
    evaluate: Input | None
    callbacks: CallbackRunner
    origin: Origin
    job_dir: Path | None = None
    cut_is_chosen: bool = True
    options: RunOptions = NO_OPTIONS
    growth: Growth | None = None
    verbose: int = 1
    user: UserState = dataclasses.field(default_factory=UserState)
    on_membership_change: Callable[[int, int], None] | None = None
    data: tuple[object, ...] = ()
    """The objects that the user gave as data, if a `fit` that continues is to read on in them."""
    beside: Sequence[tf.Variable] = ()
    """Variables that the data are made with. They belong to the state of the training."""


class OwnSteps:
    """Tells `api/horovod/fit.py` whether this process takes steps of a training."""

    depth = 0


@contextlib.contextmanager
def own_steps() -> Iterator[None]:
    """Marks a block in which applied gradients are already averages over all workers."""
    OwnSteps.depth += 1
    try:
        yield
    finally:
        OwnSteps.depth -= 1
