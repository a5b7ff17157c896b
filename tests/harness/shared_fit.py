"""Runs a case of the table plain, and with `ElasticCallback` on workers that are threads.

`StepInThreads` is the real step. Each worker computes its part of the batch eagerly, and meets the
others in the collectives. Then the results are assigned, once for all workers. One worker also
takes the step in the graph for several workers, as it does between two others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import random
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state

from hvd_elastic_keras import ElasticCallback
from hvd_elastic_keras.data.examples.structure import rows_of
from hvd_elastic_keras.data.input.interfaces import LocalBatch
from hvd_elastic_keras.keras_internals import traced_graphs
from hvd_elastic_keras.keras_internals.global_seed import GLOBAL_SEED_GENERATOR, global_seed
from hvd_elastic_keras.keras_internals.model_variables import optimizers_of, variables_of
from hvd_elastic_keras.step import compiled_steps
from hvd_elastic_keras.step.partition import run_operation
from hvd_elastic_keras.step.partition.collectives import (
    Meeting,
    ThreadCollectives,
    WorkerCollectives,
    in_threads,
)
from hvd_elastic_keras.step.partitioned_step import PartitionedStep
from hvd_elastic_keras.step.step_result import StepResult, python_logs
from tests.harness.keras_models.case import Case

SEED, EPOCHS = 7, 2


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The results of a `fit`.

    Attributes:
      values: the values of all variables, by kind and number.
      paths: Keras's paths of the variables. They differ between two runs.
      history: the values of `History`.
      told: the output before the first step.
      following: the numbers that the script would get from its next calls of random functions.
    """

    values: dict[str, Any]
    paths: dict[str, str]
    history: dict[str, Any]
    told: str = ""
    following: dict[str, float] = dataclasses.field(default_factory=dict)


class StepInThreads(PartitionedStep):
    """A step that `workers` workers share; it is always warmed up as for a single worker.

    With `in_graph`, a single worker takes it in the graph for several workers.
    """

    workers = 1
    in_graph = False

    @functools.cached_property
    def _operations(self) -> _Operations:
        return _Operations()

    @property
    def _has_own(self) -> bool:
        return not self.in_graph and super()._has_own

    def warm_up(
        self, batch: LocalBatch, *, stops: bool, has_others: bool, begins_alone: bool
    ) -> None:
        """Traces no step of several workers: they compute eagerly."""
        super().warm_up(batch, stops=stops, has_others=False, begins_alone=begins_alone)

    def __call__(
        self, batch: LocalBatch, step: int, stop: bool = False, arrive: Any = None
    ) -> StepResult:
        """Takes the step of all workers."""
        if self.workers == 1 or stop:
            return super().__call__(batch, step, stop)
        meeting, size = _Turns(self.workers), int(batch.part.offsets[-1])
        bounds = self.bounds(batch, self.workers)
        flat, planned = self._flat(batch), self.planned_for(size, is_whole=batch.is_whole)

        def worker(number: int) -> Any:
            low, high = bounds[number : number + 2]
            digest = [0] * self.tail.pieces
            numbers = tf.constant([step, low, high - low, size, 0, 0, *digest], tf.int64)
            place = self.place(numbers)
            pairs = zip(flat, planned.per_row, strict=True)
            rows = [rows_of(tensor, low, high, entries) for tensor, entries in pairs]
            collectives = WorkerCollectives(ThreadCollectives(meeting, number), place.has_rows)
            try:
                with meeting.turn:
                    computed, outputs = self.computed(rows, place, collectives, planned)
            except BaseException:
                meeting.abort()
                raise
            return computed.variables.values, outputs

        with self._operations.read_once():
            values, outputs = in_threads(worker, self.workers)[0]
        self.assign(values)
        logs = self.captured.results(outputs)
        return StepResult(python_logs(logs) if isinstance(logs, dict) else {})


class _Turns(Meeting):
    """A meeting of threads of which one computes at a time, and goes on until it waits for others.

    Threads that compute at once take the interpreter's lock from each other at each operation.

    Attributes:
      turn: held by the thread that computes.
    """

    def __init__(self, num_workers: int) -> None:
        super().__init__(num_workers)
        self.turn = threading.Lock()

    def exchanged(self, worker: int, call: tuple[str, str], value: Any) -> list[Any]:
        """Lets the others compute until they are here."""
        self.turn.release()
        try:
            return super().exchanged(worker, call, value)
        finally:
            self.turn.acquire()


class _Operations:
    """What is known of the operations of a traced step, which do not change.

    To ask TensorFlow again, for each worker and step, takes as long as to run the operations.
    """

    def __init__(self) -> None:
        self._attributes: dict[Any, Any] = {}
        self._with_functions: dict[Any, bool] = {}
        self._constants: dict[Any, list[Any]] = {}

    @contextlib.contextmanager
    def read_once(self) -> Iterator[None]:
        """While this lasts, each is asked for once, by all threads."""
        get, has, emit = tf.Operation.get_attr, traced_graphs.has_functions, run_operation.emit

        def attribute(op: Any, name: str) -> Any:
            if (op, name) not in self._attributes:
                self._attributes[op, name] = get(op, name)
            return self._attributes[op, name]

        def has_functions(op: Any) -> bool:
            if op not in self._with_functions:
                self._with_functions[op] = has(op)
            return self._with_functions[op]

        def emitted(op: Any, inputs: list[Any]) -> list[Any]:
            if op.type != "Const" or not tf.executing_eagerly():
                return emit(op, inputs)
            if op not in self._constants:
                self._constants[op] = emit(op, inputs)
            return self._constants[op]

        with (
            mock.patch.object(tf.Operation, "get_attr", attribute),
            mock.patch.object(traced_graphs, "has_functions", has_functions),
            mock.patch.object(run_operation, "emit", emitted),
        ):
            yield


class _Begin(keras.callbacks.Callback):
    """Keeps the output before the first step.

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
        """Sets the variables back if asked to: all are built, and no step has been taken."""
        self._begun = False
        if not self._sets_back:
            return
        for optimizer in optimizers_of(self.model):
            if "build" in vars(optimizer):  # it only looks as if it were not built yet
                optimizer.build(())
        variables = variables_of(self.model)
        if self._start:
            variables.assign(self._start)
        self._start = variables.values()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Notes the output so far, before the first step."""
        if not self._begun:
            self._begun = True
            self.told = self.shown.getvalue()


def plain(case: Case) -> Outcome:
    """Returns the outcome of `fit` without `ElasticCallback`."""
    model = _model(case)
    with _as_traced():
        return _fit(case, model, _Begin(), [])


def elastic(case: Case) -> Outcome:
    """Returns the outcome of `fit` with `ElasticCallback`, with one worker."""
    return next(shared(case))


def shared(
    case: Case, workers: tuple[int, ...] = (1, 3), *, in_graph: bool = False
) -> Iterator[Outcome]:
    """Yields the outcomes of the same `fit` for several numbers of workers.

    Args:
      in_graph: whether one worker then takes all steps in the graph for several workers.
    """
    model, begin = _model(case), _Begin(sets_back=True)
    with mock.patch.object(compiled_steps, "PartitionedStep", StepInThreads):
        for number in workers:
            with mock.patch.object(StepInThreads, "workers", number), _as_traced():
                found = _fit(case, model, begin, [ElasticCallback()])
            yield found
        if in_graph:
            with mock.patch.object(StepInThreads, "in_graph", True):
                yield _fit(case, model, begin, [ElasticCallback()])


@contextlib.contextmanager
def _as_traced() -> Iterator[None]:
    """Runs graphs as they were traced, while this lasts: to optimise takes longer than all steps.

    TensorFlow optimises the graph for several workers, and all graphs of other tests.
    """
    name = "disable_meta_optimizer"
    before = bool(tf.config.optimizer.get_experimental_options().get(name))
    tf.config.optimizer.set_experimental_options({name: True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({name: before})


def _model(case: Case) -> keras.Model:
    keras.utils.clear_session(free_memory=False)  # no further garbage collection is needed
    keras.utils.set_random_seed(SEED)
    return case.model()


def _fit(case: Case, model: keras.Model, begin: _Begin, callbacks: list[Any]) -> Outcome:
    arguments = {"epochs": EPOCHS, "verbose": 0, **case.data()}
    own = arguments.pop("callbacks", [])
    begin.shown = io.StringIO()
    with contextlib.redirect_stdout(begin.shown):
        history = model.fit(callbacks=[*own, begin, *callbacks], **arguments)
    # The next random numbers of a script, for example for the weights of its second model.
    following = {"random": random.random(), "numpy.random": np.random.random()}
    variables = _variables(model)
    return Outcome(
        # Always copy: values of double precision would follow the variable.
        {n: np.array(keras.ops.convert_to_numpy(v), np.float64) for n, v in variables.items()},
        {n: getattr(v, "path", v.name) for n, v in variables.items()},
        dict(history.history),
        begin.told,
        following,
    )


def differences(
    found: Outcome, expected: Outcome, tolerance: float, *, surplus: bool = False
) -> list[str]:
    """Returns the differences above the tolerance, relative and absolute; none if all is equal.

    Args:
      surplus: whether the optimizer's number of counted steps may differ.
    """
    result = []
    for kind in ("values", "history"):
        these, those = getattr(found, kind), getattr(expected, kind)
        # Plain Keras creates optimizer slots and a global generator only when they are used.
        more = these.keys() - those.keys()
        unasked = {name for name in more if name.startswith(("optimizer ", "global seed"))}
        if (these.keys() ^ those.keys()) - unasked:
            result.append(f"{kind} of {sorted(these)} in place of {sorted(those)}")
        for name in these.keys() & those.keys():
            if surplus and name == "optimizer 0":
                continue
            a, b = (np.asarray(v[name], np.float64) for v in (these, those))
            if a.shape != b.shape or not np.allclose(a, b, tolerance, tolerance, equal_nan=True):
                path = expected.paths.get(name, "history")
                result.append(f"{name} ({path}): {a.ravel()[:6]} in place of {b.ravel()[:6]}")
    return sorted(result)


def _variables(model: keras.Model) -> dict[str, Any]:
    """Returns all variables except the metrics', which are reset after an epoch."""
    has_generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR) is not None
    variables = variables_of(model)
    known = {id(v) for v in (*variables.trainable, global_seed())}
    kinds = {
        "trainable": variables.trainable,
        "other": [v for v in variables.layers if id(v) not in known],
        "optimizer": variables.optimizer,
        "raw": variables.raw,
        "global seed": [global_seed()] if has_generator else [],
    }
    return {f"{kind} {n}": v for kind, group in kinds.items() for n, v in enumerate(group)}
