"""A source with random access: who reads what, in which order, and what is refused."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_elastic_keras.common.batch_plan import Share, share_of
from hvd_elastic_keras.common.errors import DataError, InputUnavailableError
from hvd_elastic_keras.data.plan.partition import Partition
from hvd_elastic_keras.data.sources.random_access import LONGEST_READ, RandomAccessExamples, Source
from hvd_elastic_keras.data.sources.source import ExampleSource, as_source


class Numbers:
    """Example i is (i, [i, i])."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return np.int64(index), np.full(2, index, np.float32)


class InBlocks(Numbers):
    """Reads several at a time, blocks of 8 best."""

    block_size = 8
    window_blocks = 2

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.calls: list[list[int]] = []

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        self.calls.append(list(indices))
        return [self[i] for i in indices]


class Listed:
    """Any examples."""

    def __init__(self, *examples: Any) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Any:
        return self.examples[index]


def examples_of(source: Any, preprocess: Any = None, shuffle: bool = True) -> RandomAccessExamples:
    return RandomAccessExamples(source, preprocess, seed=7, shuffle=shuffle, name="the data")


def labels(batches: Iterator[Any]) -> list[npt.NDArray[np.int64]]:
    return [np.asarray(data[0]) for _, data in batches]


def expected(source: ExampleSource, epoch: int, start: int, stop: int) -> npt.NDArray[np.int64]:
    positions = tf.range(start, stop, dtype=tf.int64)
    return np.asarray(source.order(epoch).indices(positions))


@settings(max_examples=200)
@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 20), st.integers(1, 5), st.data())
def test_a_stream_is_the_parts_of_its_steps_one_after_the_other(
    num_examples: int, global_size: int, micro_size: int, every: int, data: st.DataObject
) -> None:
    partition = Partition(num_examples, global_size, micro_size)
    count = partition.num_micro_batches
    first = data.draw(st.integers(0, count))
    share = Share(first, data.draw(st.integers(first, count)))
    first_step = data.draw(st.integers(0, partition.steps_per_epoch))
    stream = partition.epoch_share(share, first_step, every)
    wanted: list[int] = []
    for step in range(first_step, partition.steps_per_epoch, every):
        part = partition.step_share(step, share.first, share.last)
        wanted += range(part.start, part.stop)
    assert stream.total == len(wanted)
    if wanted:
        np.testing.assert_array_equal(stream.positions(np.arange(stream.total)), wanted)


@pytest.mark.parametrize("kind", [Numbers, InBlocks])
@pytest.mark.parametrize("prepares", [False, True])
@pytest.mark.parametrize(("first_step", "every"), [(0, 1), (2, 1), (1, 3)])
def test_each_worker_reads_its_part_of_the_order(
    kind: type[Numbers], prepares: bool, first_step: int, every: int
) -> None:
    def double(example: Any) -> Any:
        number, pair = example
        return number, pair * 2

    partition = Partition(100, 16, 6)
    found: list[list[npt.NDArray[np.int64]]] = []
    for rank in range(4):  # the last one has nothing
        source = examples_of(kind(100), double if prepares else None)
        share = share_of(rank, 4, partition.num_micro_batches)
        batches = list(source.batches(3, partition, share, first_step, every))
        found.append(labels(iter(batches)))
        for ids, (number, pair) in batches:
            factor = 2 if prepares else 1
            np.testing.assert_array_equal(ids, number)
            np.testing.assert_array_equal(pair, np.stack([number, number], 1) * factor)
    for place, step in enumerate(range(first_step, partition.steps_per_epoch, every)):
        stop = min(100, 16 * step + 16)
        whole = np.concatenate([parts[place] for parts in found])
        np.testing.assert_array_equal(whole, expected(source, 3, 16 * step, stop))


def test_nothing_is_read_that_belongs_to_another_worker_or_an_earlier_step() -> None:
    source = Numbers(1000)
    examples = examples_of(source, lambda example: example)
    source.asked.clear()
    partition = Partition(1000, 100, 10)
    list(examples.batches(0, partition, Share(2, 5), 7))
    wanted = [expected(examples, 0, 100 * s + 20, 100 * s + 50) for s in (7, 8, 9)]
    assert sorted(source.asked) == sorted(np.concatenate(wanted))


def test_a_source_that_reads_several_is_asked_for_several() -> None:
    source = InBlocks(1000)
    examples = examples_of(source, lambda example: example)
    list(examples.batches(0, Partition(1000, 1000, 1000), Share(0, 1), 0))
    assert [len(call) for call in source.calls] == [LONGEST_READ] * 3 + [1000 - 3 * LONGEST_READ]


def test_examples_of_different_sizes_go_through_preprocess() -> None:
    source = Listed(*[{"a": np.ones(n, np.int32), "b": "x" * n} for n in (3, 5, 0, 2)])
    examples = examples_of(
        source,
        lambda e: (tf.reduce_sum(e["a"]), tf.strings.length(e["b"])),
        shuffle=False,
    )
    ((_, batch),) = examples.batches(0, Partition(4, 8, 8), Share(0, 1), 0)
    np.testing.assert_array_equal(batch[0], [3, 5, 0, 2])
    np.testing.assert_array_equal(batch[1], [3, 5, 0, 2])


def test_bytes_arrive_as_they_are() -> None:
    raw = [b"", b"a\0", b"\0\0", b"\xff"]
    examples = examples_of(Listed(*raw), lambda e: (e, tf.strings.length(e)), shuffle=False)
    ((_, batch),) = examples.batches(0, Partition(4, 4, 4), Share(0, 1), 0)
    assert batch[0].numpy().tolist() == raw


def test_strings_arrive_as_their_bytes_in_preprocess_and_without_it() -> None:
    texts = ["one", "two", "dr\u00e9i"]
    partition, encoded = Partition(3, 3, 3), [text.encode() for text in texts]
    upper = (lambda e: (tf.strings.upper(e[0]), e[1]), [b"ONE", b"TWO", "DR\u00e9I".encode()])
    for preprocess, wanted in ((None, encoded), upper):
        source = examples_of(Listed(*[(t, 0) for t in texts]), preprocess, shuffle=False)
        _, (batch, _) = next(source.batches(0, partition, Share(0, 1), 0))
        assert batch.numpy().tolist() == wanted


def test_doubles_become_floats_unless_the_source_says_otherwise() -> None:
    source = Listed((1.0, np.zeros(3)), (2.0, np.ones(3)))
    assert [s.dtype for s in examples_of(source).batch_spec] == [tf.float32, tf.float32]
    source.element_spec = (tf.TensorSpec([], tf.float64), tf.TensorSpec([3], tf.float64))  # type: ignore[attr-defined]
    assert [s.dtype for s in examples_of(source).batch_spec] == [tf.float64, tf.float64]


def test_a_worker_without_a_part_gets_empty_batches() -> None:
    examples = examples_of(Numbers(10))
    batches = list(examples.batches(0, Partition(10, 4, 4), Share(1, 1), 0))
    assert [tuple(pair.shape) for _, (_, pair) in batches] == [(0, 2)] * 3
    assert all(ids.shape == (0,) for ids, _ in batches)


def test_ragged_results_of_preprocess_form_ragged_batches() -> None:
    examples = examples_of(
        Numbers(5), lambda e: (tf.RaggedTensor.from_tensor(tf.ones([2, e[0] + 1])), e[0])
    )
    batches = list(examples.batches(0, Partition(5, 4, 2), Share(0, 1), 0))
    assert [data[0].shape[0] for _, data in batches] == [2, 1]
    (_, (_, empty)) = examples.batches(0, Partition(5, 4, 2), Share(1, 2), 0)
    assert empty[0].shape[0] == 0


@pytest.mark.parametrize(
    "data", [Numbers(3), (Numbers(3), lambda e: e), [Numbers(3), tf.identity_n]]
)
def test_a_source_alone_or_with_a_function_is_recognised(data: Any) -> None:
    source = as_source(data, seed=0, shuffle=True, name="the data")
    assert isinstance(source, RandomAccessExamples)
    assert isinstance(Numbers(3), Source)


def test_pairs_of_arrays_are_still_arrays() -> None:
    for data in ((np.zeros(3), np.zeros(3)), [np.zeros(3), tf.zeros(3)]):
        assert not isinstance(
            as_source(data, seed=0, shuffle=True, name="the data"), RandomAccessExamples
        )


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return np.zeros((2, 2)), np.zeros(2)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Batches(), "Batches is a keras.utils.PyDataset, which gives batches"),
        ((tf.data.Dataset.range(3).__iter__(), lambda e: e), "source that has __len__"),
        (Listed(), "The source of the data is empty"),
        (Listed((1, 2), (1, 2, 3)), r"different structures: .int64 of shape .., int64"),
        (Listed({"a": 1}, {"b": 1}), "different structures"),
        (
            Listed(np.zeros(2), np.zeros((2, 2))),
            r"float32 of shape \(2,\) and float32 of shape \(2, 2\)",
        ),
        (Listed((1, None)), "An example contains NoneType, expected arrays"),
    ],
)
def test_what_cannot_be_read_is_refused_at_once(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        as_source(data, seed=0, shuffle=True, name="the data")


GOOD = (1, np.zeros(2, np.float32))


@pytest.mark.parametrize(
    ("bad", "found"),
    [
        (
            (1, np.zeros(3, np.float32)),
            r"float32 of shape \(3,\) at \[1\], expected float32 of shape \(2,\)",
        ),
        ((1.5, np.zeros(2)), r"float32 of shape \(\) at \[0\], expected int64 of shape \(\)"),
        ((b"x", np.zeros(2)), r"string of shape \(\) at \[0\], expected int64"),
        ((1, None), r"NoneType at \[1\], expected float32"),
        ((1,), "a tuple of 1, expected a tuple of 2"),
        ({"a": 1}, r"a dict with the keys \['a'\], expected a tuple of 2"),
        (((1, 2), np.zeros(2)), r"int64 of shape \(2,\) at \[0\], expected int64 of shape"),
        (7, "int, expected a tuple of 2"),
    ],
)
@pytest.mark.parametrize("prepares", [False, True])
def test_an_example_of_another_form_is_named(bad: Any, found: str, prepares: bool) -> None:
    source = Listed(*[GOOD] * 2, bad, *[GOOD] * 7)
    examples = examples_of(source, (lambda e: e) if prepares else None)
    with pytest.raises(DataError, match=f"Example 2 of the data has {found}"):
        list(examples.batches(0, Partition(10, 4, 4), Share(0, 1), 0))


def test_examples_are_prepared_in_parallel_and_ahead_of_the_training() -> None:
    meeting = threading.Barrier(2)  # nobody passes alone
    prepared: list[int] = []
    second_batch = threading.Event()

    def work(number: np.int64) -> np.int64:
        meeting.wait(60)
        prepared.append(int(number))
        if len(prepared) == 16:
            second_batch.set()
        return number

    examples = examples_of(
        Numbers(64),
        lambda e: (tf.ensure_shape(tf.numpy_function(work, [e[0]], tf.int64), []), e[1]),
    )
    batches = examples.batches(0, Partition(64, 8, 8), Share(0, 1), 0)
    np.testing.assert_array_equal(next(batches)[0], expected(examples, 0, 0, 8))
    assert second_batch.wait(60)  # although nobody has asked for it
    np.testing.assert_array_equal(next(batches)[0], expected(examples, 0, 8, 16))
    meeting.abort()
    batches.close()


def test_a_source_that_gives_too_few_at_a_time_is_refused() -> None:
    class Forgetful(Numbers):
        def __getitems__(self, indices: Sequence[int]) -> list[Any]:
            return [self[i] for i in indices[1:]]

    examples = examples_of(Forgetful(20))
    with pytest.raises(DataError, match="returned 3 examples, expected 4: one for each index"):
        list(examples.batches(0, Partition(20, 4, 4), Share(0, 1), 0))


@pytest.mark.parametrize("at_once", [False, True])
def test_an_example_that_the_source_cannot_give_is_named(at_once: bool) -> None:
    class Failing(Numbers):
        def __getitem__(self, index: int) -> Any:
            if index == 5:
                raise OSError("the disk is gone")
            return super().__getitem__(index)

    class FailingTogether(Numbers):
        def __getitems__(self, indices: Sequence[int]) -> list[Any]:
            raise OSError("the disk is gone")

    examples = examples_of(FailingTogether(20) if at_once else Failing(20))
    which = "One of the examples .* and .* more" if at_once else "Example 5"
    # It may come back: only this worker ends.
    with pytest.raises(
        InputUnavailableError, match=f"{which} of the data cannot be read: OSError: the disk"
    ):
        list(examples.batches(0, Partition(20, 10, 5), Share(0, 2), 0))


@pytest.mark.parametrize(
    ("kind", "error"), [("a file", DataError), ("a key", InputUnavailableError)]
)
def test_whatever_preprocess_raises_is_explained(kind: str, error: type[Exception]) -> None:
    def missing_key(number: np.int64) -> np.int64:
        return {0: number}[int(number) // 11]

    def fails(example: Any) -> Any:
        number = example[0]
        if kind == "a key":
            return tf.ensure_shape(tf.numpy_function(missing_key, [number], tf.int64), [])
        return tf.cond(number == 11, lambda: tf.io.read_file("/no/such/file"), lambda: "")

    examples = examples_of(Numbers(12), fails)
    message = r"preprocess fails on example 11 of the data: .*(no/such/file|KeyError: 1)"
    with pytest.raises(error, match=message):
        list(examples.batches(0, Partition(12, 4, 4), Share(0, 1), 0))


def test_an_example_that_preprocess_fails_on_is_named() -> None:
    def check(example: Any) -> Any:
        with tf.control_dependencies(
            [tf.debugging.assert_none_equal(example[0], np.int64(11), message="bad")]
        ):
            return tf.identity(example[0]), example[1]

    examples = examples_of(Numbers(12), check)
    with pytest.raises(DataError, match=r"preprocess fails on example 11 of the data: .*bad"):
        list(examples.batches(0, Partition(12, 4, 4), Share(0, 1), 0))


def test_results_of_different_shapes_are_no_batch() -> None:
    examples = examples_of(Numbers(4), lambda e: (tf.zeros([e[0]]), e[0]))
    with pytest.raises(DataError, match="The examples of the data do not form a batch"):
        list(examples.batches(0, Partition(4, 4, 4), Share(0, 1), 0))


def test_one_reader_at_a_time_although_iterators_are_dropped_while_they_read() -> None:
    class Single(Numbers):
        """Notes how many read it at once."""

        inside, most = 0, 0

        def __getitem__(self, index: int) -> Any:
            self.inside += 1
            self.most = max(self.most, self.inside)
            threading.Event().wait(0.0002)  # others may come in
            self.inside -= 1
            return super().__getitem__(index)

    source = Single(1000)
    examples = examples_of(source, lambda example: example)
    for step in range(5):
        next(examples.batches(0, Partition(1000, 100, 100), Share(0, 1), step))
    assert source.most == 1


@pytest.mark.parametrize("share", [Share(0, 2), Share(1, 3)])
def test_an_epoch_may_be_opened_before_its_share_is_known(share: Share) -> None:
    """Its iterator is made before the end of the epoch before it, and used if it fits."""
    numbers = Numbers(40)
    source, partition = examples_of(numbers), Partition(40, 12, 4)
    list(source.batches(0, partition, Share(0, 2), 0))
    numbers.asked.clear()
    found = np.concatenate(labels(source.batches(1, partition, share, 0)))
    parts = [partition.step_share(step, share.first, share.last) for step in range(4)]
    wanted = np.concatenate([expected(source, 1, part.start, part.stop) for part in parts])
    np.testing.assert_array_equal(found, wanted)
    assert sorted(numbers.asked) == sorted(wanted)  # nothing else is read


def test_what_is_opened_ahead_reads_nothing() -> None:
    numbers = Numbers(40)
    source = examples_of(numbers)
    numbers.asked.clear()
    list(source.batches(0, Partition(40, 12, 4), Share(0, 3), 0))
    assert sorted(numbers.asked) == list(range(40))
