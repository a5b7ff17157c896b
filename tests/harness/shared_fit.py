"""Runs a case of the table plain, and with `ElasticCallback` on workers simulated in one process.

`SharedStep` is the real step, taken once for each worker with that worker's part of the batch, in
the place of Horovod's allreduce an addition in this process. For all workers but one the
"collective" fails after it has got their sums, so that nothing is assigned: a step that fails must
leave everything as it was. The last one gets the sum of all and finishes the step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import random
from collections.abc import Collection, Iterator
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from hvd_elastic_keras.step.atomic import AtomicStep
from keras.src.backend.common import global_state

from hvd_elastic_keras import ElasticCallback
from hvd_elastic_keras.common.batch_plan import share_of
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.input.interfaces import LocalBatch
from hvd_elastic_keras.keras_internals.global_seed import GLOBAL_SEED_GENERATOR
from hvd_elastic_keras.keras_internals.model_variables import variables_of
from hvd_elastic_keras.step import compiled_steps
from hvd_elastic_keras.step.step_result import StepResult
from tests.harness.keras_models.case import Case

SEED, EPOCHS = 7, 2
LOST = "the other workers of this simulation go on"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a `fit` has left behind.

    Attributes:
      values: of all variables, by kind and number.
      paths: how Keras calls them; not the same in two runs.
      history: of `History`.
      told: what was shown before the first step.
      following: the numbers that the script's next calls of random functions would give.
    """

    values: dict[str, Any]
    paths: dict[str, str]
    history: dict[str, Any]
    told: str = ""
    following: dict[str, float] = dataclasses.field(default_factory=dict)


class _Exchange:
    """Stands for the collective. TensorFlow keeps it for ever, so it does not know the step."""

    def __init__(self) -> None:
        self.fails = False
        self.arrived: list[list[Any]] = []
        self.sums: list[Any] = []

    def __call__(self, *values: Any) -> list[Any]:
        """The sums over all workers; keeps those of a worker for whom the collective fails."""
        if self.fails:
            self.arrived.append([np.array(v) for v in values])
            raise tf.errors.UnknownError(None, None, LOST)
        self.sums = [np.asarray(sum(group)) for group in zip(values, *self.arrived, strict=True)]
        return self.sums


class SharedStep(AtomicStep):
    """A step that `workers` workers share, one after the other in this process."""

    workers = 1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._exchange = _Exchange()
        self._warm = False
        super().__init__(*args, **kwargs)
        self._reduction: Any = self._exchanged

    def __call__(
        self, batch: LocalBatch, step: int, stop: bool = False, arrive: Any = None
    ) -> StepResult:
        """The step of the first worker, when the others have given their sums."""
        # Warmed up alone, as a worker is before it joins; an evaluation may not be shared.
        workers = self.workers if self._warm and self._shared else 1
        self._warm = True
        mine, *others = (_part(batch, rank, workers) for rank in range(workers))
        self._exchange.arrived = []
        self._exchange.fails = True
        for part in others:
            with contextlib.suppress(tf.errors.UnknownError):
                super().__call__(part, step, stop)
                raise AssertionError("a step whose collective failed has ended")
        assert len(self._exchange.arrived) == len(others)
        self._exchange.fails = False
        return super().__call__(mine, step, stop)

    @property
    def sums(self) -> list[Any]:
        """What the last collective gave."""
        return self._exchange.sums

    def _exchanged(
        self, gradients: list[tf.Tensor], exact: tf.Tensor, _has_others: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """In the place of `Reduction`."""
        tensors = [*gradients, exact]
        if tf.executing_eagerly():
            found = self._exchange(*(t.numpy() for t in tensors))
            *sums, exact = [tf.convert_to_tensor(t) for t in found]
            return sums, exact
        found = tf.numpy_function(self._exchange, tensors, [t.dtype for t in tensors])
        *sums, exact = [tf.ensure_shape(s, t.shape) for s, t in zip(found, tensors, strict=True)]
        return sums, exact


def _part(batch: LocalBatch, rank: int, workers: int) -> LocalBatch:
    """One worker's part of a batch."""
    whole = batch.part
    share = share_of(rank, workers, len(whole.offsets) - 1)
    offsets = whole.offsets[share.first : share.last + 1]
    low, high = int(offsets[0]), int(offsets[-1])
    part = dataclasses.replace(
        whole,
        start=whole.start + low,
        stop=whole.start + high,
        offsets=offsets - low,
        first_micro_batch=whole.first_micro_batch + share.first,
        first_example=whole.first_example + low,
    )
    return dataclasses.replace(
        batch, data=structure.cut(batch.data, low, high), part=part, ids=batch.ids[low:high]
    )


class _Begin(keras.callbacks.Callback):
    """Keeps what was told before the first step.

    Args:
      sets_back: whether each `fit` after the first begins where the first one began.
    """

    def __init__(self, sets_back: bool = False) -> None:
        super().__init__()
        self._sets_back = sets_back
        self.shown = io.StringIO()
        self.told = ""
        self._begun = False
        self._start: list[Any] = []

    def on_train_begin(self, logs: Any = None) -> None:
        """Everything is built, and no step has been taken."""
        self._begun = False
        if not self._sets_back:
            return
        variables = variables_of(self.model)
        if self._start:
            variables.assign(self._start)
        self._start = variables.values()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Notes what has been told up to here."""
        if not self._begun:
            self._begun = True
            self.told = self.shown.getvalue()


def plain(case: Case) -> Outcome:
    """`fit` without `ElasticCallback`."""
    model = _model(case)
    return _fit(case, model, _Begin(), [])


def elastic(case: Case, micro_batch_size: int | None) -> Outcome:
    """`fit` with `ElasticCallback`, alone."""
    model = _model(case)
    callback = ElasticCallback(micro_batch_size=micro_batch_size)
    return _fit(case, model, _Begin(), [callback])


def shared(case: Case, workers: tuple[int, ...] = (1, 3)) -> Iterator[Outcome]:
    """The outcomes of the same `fit` for several numbers of workers.

    The step is traced once for all, as in a job whose workers come and go.
    """
    model, begin = _model(case), _Begin(sets_back=True)
    with mock.patch.object(compiled_steps, "AtomicStep", SharedStep):
        for number in workers:
            with mock.patch.object(SharedStep, "workers", number):
                callback = ElasticCallback(micro_batch_size=case.cut)
                yield _fit(case, model, begin, [callback])


def _model(case: Case) -> keras.Model:
    keras.utils.clear_session(free_memory=False)  # the collector needs no second hint
    keras.utils.set_random_seed(SEED)
    return case.model()


def _fit(case: Case, model: keras.Model, begin: _Begin, callbacks: list[Any]) -> Outcome:
    arguments = {"epochs": EPOCHS, "verbose": 0, **case.data()}
    own = arguments.pop("callbacks", [])
    begin.shown = io.StringIO()
    with contextlib.redirect_stdout(begin.shown):
        history = model.fit(callbacks=[*own, begin, *callbacks], **arguments)
    # What a script draws next, say for the weights of its second model.
    following = {"random": random.random(), "numpy.random": np.random.random()}
    variables = _variables(model)
    return Outcome(
        # A copy in any case: those of double precision would follow the variable.
        {n: np.array(keras.ops.convert_to_numpy(v), np.float64) for n, v in variables.items()},
        {n: getattr(v, "path", v.name) for n, v in variables.items()},
        dict(history.history),
        begin.told,
        following,
    )


def differences(
    found: Outcome,
    expected: Outcome,
    tolerance: float,
    *,
    surplus: bool = False,
    averaged: Collection[str] = (),
) -> list[str]:
    """What differs by more than the tolerance, relative and absolute; nothing if all is equal.

    Args:
      surplus: whether the number of steps that the optimizer has counted may differ.
      averaged: names of the history whose values may differ; they have to be there.
    """
    result = []
    for kind in ("values", "history"):
        these, those = getattr(found, kind), getattr(expected, kind)
        # Plain Keras makes no slots of an optimizer and no global generator that nobody asks.
        more = these.keys() - those.keys()
        unasked = {name for name in more if name.startswith(("optimizer ", "seeds "))}
        if (these.keys() ^ those.keys()) - unasked:
            result.append(f"{kind} of {sorted(these)} in place of {sorted(those)}")
        for name in these.keys() & those.keys():
            if name in averaged or (surplus and name == "optimizer 0"):
                continue
            a, b = (np.asarray(v[name], np.float64) for v in (these, those))
            if a.shape != b.shape or not np.allclose(a, b, tolerance, tolerance, equal_nan=True):
                path = expected.paths.get(name, "history")
                result.append(f"{name} ({path}): {a.ravel()[:6]} in place of {b.ravel()[:6]}")
    return sorted(result)


def _variables(model: keras.Model) -> dict[str, Any]:
    """All variables but those of metrics, which are reset after an epoch."""
    no_generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR) is None
    variables = variables_of(model)
    if no_generator:  # it has been made just now
        variables = dataclasses.replace(variables, seeds=variables.seeds[:-1])
    return {
        f"{kind} {number}": v
        for kind in ("trainable", "averaged", "seeds", "optimizer", "raw")
        for number, v in enumerate(getattr(variables, kind))
    }
