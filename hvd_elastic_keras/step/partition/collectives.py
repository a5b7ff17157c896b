"""Collectives between the workers of a step, whether they have rows or not.

`ThreadCollectives` are collectives between threads of one process: each thread is a worker.

`gathered_leaf` gathers tensors of a batch before anything else, because their rows may differ in
form.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import tensorflow as tf

MOST_WAIT_S = 600


class Collectives(Protocol):
    """The collectives of a step. All workers make the same calls."""

    def summed(
        self, tensors: list[tf.Tensor], name: str, *, rounded: bool = False
    ) -> list[tf.Tensor]:
        """Returns the sums over all workers of tensors that travel together.

        Args:
          rounded: whether the tensors travel in 16 bits, if a type of 16 bits was chosen.
        """

    def gathered(self, tensors: list[tf.Tensor], name: str) -> list[tf.Tensor]:
        """Returns the rows of all workers, one worker after the other, of tensors that travel
        together. Tensors may have different numbers of rows, and none on some workers.
        """

    def extreme(self, tensor: tf.Tensor, kind: str, name: str) -> tf.Tensor:
        """Returns the "Max", "Min", "All" or "Any" over all workers."""


Tail = Callable[[Sequence[tf.Tensor]], tf.Tensor]
"""Makes the tensor that travels with the last sums, shape [n], float32. It receives the tensors
that have to be computed before."""
MOST_PACKED = 1 << 14
"""Tensors with fewer elements are small. They travel end to end in one tensor, and what a worker
without others or rows sends in their place is chosen element by element. Each copies them, but each
tensor that travels, and each branch, costs time and operations of the graph."""


class WorkerCollectives:
    """The collectives of a worker that may have no rows, and may be alone.

    Results of a worker without rows do not count. A worker that is alone leaves collectives out:
    each takes 0.6 ms even then. Both conditions may change from step to step without a new trace.

    Args:
      has_rows: whether the worker has rows.
      has_others: whether there are other workers.

    Attributes:
      results: results of collectives, and of loops and branches that contain collectives.
      asserts: tells whether an assertion is made, given the number of rounds of collectives before
        it.
    """

    def __init__(
        self,
        collectives: Collectives,
        has_rows: tf.Tensor | bool = True,
        has_others: tf.Tensor | bool = True,
    ) -> None:
        self._collectives = collectives
        self._has_rows = has_rows
        self._has_others = has_others
        self.asserts: Callable[[int], bool] = lambda rounds: True
        self.results: list[tf.Tensor] = []

    def tail(self, make: Tail, before: Sequence[tf.Tensor]) -> tf.Tensor:
        """Makes the tensor that travels with the last sums, once `before` is computed."""
        return make(before)

    def summed(
        self,
        tensors: list[tf.Tensor],
        name: str,
        tail: tf.Tensor | None = None,
        *,
        rounded: bool = False,
    ) -> list[tf.Tensor]:
        """Sums tensors over the workers. A worker without rows adds only its tail.

        Args:
          tail: a tensor that travels with the others.
          rounded: see `Collectives`; not used with a tail.

        Returns:
          The sums of the tensors. The sum of the tail follows, if there is one.
        """
        beside = [] if tail is None else [tail]
        given = [*map(self._zero_without_rows, tensors), *beside]
        sums = self._or_alone(lambda t: self._collectives.summed(t, name, rounded=rounded), given)
        self.results += sums[: len(tensors)]
        return sums

    def gathered(self, tensors: list[tf.Tensor], name: str) -> list[tf.Tensor]:
        """Gathers the rows of all workers. A worker without rows gives none."""
        given = [t[: self._if_rows(tf.shape(t)[0])] for t in tensors]
        wholes = self._or_alone(lambda t: self._collectives.gathered(t, name), given)
        self.results += wholes
        return wholes

    def extreme(self, tensor: tf.Tensor, kind: str, name: str) -> tf.Tensor:
        """Finds an extreme over all workers. A worker without rows gives a neutral value."""
        given = self._if_rows(tensor, neutral(tensor.dtype, kind))
        (found,) = self._or_alone(lambda t: [self._collectives.extreme(t[0], kind, name)], [given])
        self.results.append(found)
        return found

    def _if_rows(self, counted: tf.Tensor, otherwise: Any = 0) -> tf.Tensor:
        if self._has_rows is True:
            return counted
        return tf.where(self._has_rows, counted, tf.convert_to_tensor(otherwise, counted.dtype))

    def _zero_without_rows(self, tensor: tf.Tensor) -> tf.Tensor:
        if self._has_rows is True or is_small(tensor.shape):
            return self._if_rows(tensor)
        # Choosing by element would copy a gradient.
        has_none = tf.logical_not(self._has_rows)
        return changed_if(has_none, lambda t: [tf.raw_ops.ZerosLike(x=t[0])], [tensor])[0]

    def _or_alone(
        self, with_others: Callable[[list[tf.Tensor]], list[tf.Tensor]], given: list[tf.Tensor]
    ) -> list[tf.Tensor]:
        if self._has_others is True:
            return with_others(given)
        return changed_if(self._has_others, with_others, given)

    def outermost(self, graph: Any) -> list[tf.Tensor]:
        """Returns the `results` in this graph. All of them must be computed before its end."""
        return [t for t in self.results if t.graph is graph]


def changed_if(
    condition: tf.Tensor,
    change: Callable[[list[tf.Tensor]], list[tf.Tensor]],
    tensors: list[tf.Tensor],
) -> list[tf.Tensor]:
    """Returns `change(tensors)` if the condition holds, and else the tensors as they are.

    This is the conditional of Yu et al., "Dynamic control flow in large-scale machine learning"
    (EuroSys 2018): no operation runs that has an input from the side that is not taken. `tf.cond`
    ends as the same operations, but first traces a graph for each side, which takes longer than to
    trace a collective, and may rename what is in it. A collective has the name of its operation.

    Args:
      change: makes operations that have no effect besides their results.
    """
    if tf.executing_eagerly():
        return change(tensors) if condition else tensors
    sides = [tf.raw_ops.Switch(data=t, pred=condition) for t in tensors]
    changed = change([side.output_true for side in sides])
    return [
        tf.raw_ops.Merge(inputs=[side.output_false, result]).output
        for side, result in zip(sides, changed, strict=True)
    ]


def is_small(shape: tf.TensorShape) -> bool:
    """Whether tensors of a shape are known to have few elements."""
    return (shape.num_elements() or MOST_PACKED) < MOST_PACKED


class PackedTensors:
    """Tensors of one type, of which the small ones are put end to end.

    Args:
      shapes: what all workers know of the shapes of the tensors.

    Attributes:
      tensors: the small tensors in one, and all others.
    """

    def __init__(self, tensors: Sequence[tf.Tensor], shapes: Sequence[tf.TensorShape]) -> None:
        small = [i for i, shape in enumerate(shapes) if is_small(shape)]
        self._small = small if len(small) > 1 else []
        self._others = [i for i in range(len(tensors)) if i not in set(self._small)]
        self._shapes = list(shapes)
        flat = [tensors[i] if r == 1 else tf.reshape(tensors[i], [-1]) for i, r in self._ranks]
        together = [tf.concat(flat, 0)] if flat else []
        self.tensors = [*together, *(tensors[i] for i in self._others)]

    def apart(self, results: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns a result of each tensor, given one of each of `tensors`."""
        found = dict(zip(reversed(self._others), reversed(results), strict=False))
        if self._small:
            sizes = [self._shapes[i].num_elements() for i in self._small]
            parts = tf.split(results[0], sizes)
            for (i, rank), part in zip(self._ranks, parts, strict=True):
                found[i] = part if rank == 1 else tf.reshape(part, self._shapes[i])
        return [found[i] for i in range(len(self._shapes))]

    @property
    def _ranks(self) -> list[tuple[int, int]]:
        """The rank of each small tensor."""
        return [(i, self._shapes[i].rank) for i in self._small]


def neutral(dtype: tf.DType, kind: str) -> Any:
    """Returns a value that does not change an extreme."""
    if kind in ("All", "Any"):
        return kind == "All"
    if dtype.is_floating:
        return tf.constant(float("-inf") if kind == "Max" else float("inf"), dtype)
    return tf.constant(dtype.min if kind == "Max" else dtype.max, dtype)


class Meeting:
    """Exchanges values between threads, and checks that all threads make the same calls."""

    def __init__(self, num_workers: int) -> None:
        self._barrier = threading.Barrier(num_workers, timeout=MOST_WAIT_S)
        self._given: list[Any] = [None] * num_workers

    def exchanged(self, worker: int, call: tuple[str, str], value: Any) -> list[Any]:
        """Returns the values of all workers.

        Raises:
          ValueError: the workers have made different calls.
        """
        self._given[worker] = (call, value)
        self._barrier.wait()
        given = list(self._given)
        self._barrier.wait()
        calls = {one for one, _ in given}
        if len(calls) > 1:
            raise ValueError(f"workers make different calls: {calls}")
        return [value for _, value in given]

    def abort(self) -> None:
        """Lets no worker wait for a worker that has failed."""
        self._barrier.abort()


class ThreadCollectives:
    """The collectives of one thread.

    Args:
      half: the type in which gradients travel. None: their own type.
    """

    def __init__(self, meeting: Meeting, worker: int, half: tf.DType | None = None) -> None:
        self._meeting, self._worker, self._half = meeting, worker, half

    def summed(
        self, tensors: list[tf.Tensor], name: str, *, rounded: bool = False
    ) -> list[tf.Tensor]:
        """Adds in the order of the workers. Rounded tensors are rounded before and after."""
        if rounded and self._half is not None:
            rounds = [tf.cast(tf.cast(t, self._half), t.dtype) for t in tensors]
            sums = self.summed(rounds, name)
            return [tf.cast(tf.cast(s, self._half), s.dtype) for s in sums]
        given = self._meeting.exchanged(self._worker, ("sum", name), tensors)
        return [tf.add_n(list(each)) for each in zip(*given, strict=True)]

    def gathered(self, tensors: list[tf.Tensor], name: str) -> list[tf.Tensor]:
        """Gathers tensors in the order of the workers."""
        given = self._meeting.exchanged(self._worker, ("gather", name), tensors)
        return [tf.concat(each, 0) for each in zip(*given, strict=True)]

    def extreme(self, tensor: tf.Tensor, kind: str, name: str) -> tf.Tensor:
        """Returns an extreme over all workers."""
        reduce = {
            "Max": tf.reduce_max,
            "Min": tf.reduce_min,
            "All": tf.reduce_all,
            "Any": tf.reduce_any,
        }[kind]
        return reduce(tf.stack(self._meeting.exchanged(self._worker, (kind, name), tensor)), 0)


def in_threads(function: Callable[[int], Any], number: int) -> list[Any]:
    """Calls the function with 0 to `number` - 1, in threads, and returns the results.

    Raises the first error that is not a consequence of another one.
    """
    with ThreadPoolExecutor(number) as pool:
        futures = [pool.submit(function, i) for i in range(number)]
    errors = [e for f in futures if (e := f.exception()) is not None]
    for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
        raise error
    return [f.result() for f in futures]


def gathered_leaf(
    own: Any, gathered: Callable[[Any], Any], low: tf.Tensor, total: tf.Tensor
) -> Any:
    """Returns the whole of a dense, ragged or sparse tensor of which each worker has its rows.

    Args:
      own: the rows of this worker.
      gathered: gathers tensors of all workers along the first axis. A worker without rows gives
        none.
      low: the first row of this worker.
      total: the rows of all workers.
    """
    if isinstance(own, tf.RaggedTensor):
        lengths = [gathered(n) for n in own.nested_row_lengths()]
        values = gathered(own.flat_values)
        return tf.RaggedTensor.from_nested_row_lengths(values, lengths, validate=False)
    if isinstance(own, tf.SparseTensor):
        first = tf.one_hot(0, own.shape.rank, tf.cast(low, tf.int64), 0, dtype=tf.int64)
        indices, values = gathered(own.indices + first), gathered(own.values)
        sizes = tf.concat([[tf.cast(total, tf.int64)], own.dense_shape[1:]], 0)
        return tf.SparseTensor(indices, values, sizes)
    return gathered(own)
