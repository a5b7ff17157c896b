"""Single examples from a `tf.data.Dataset`: the same ones in every process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import pytest
import tensorflow as tf

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.common.errors import DataError, ElasticError, InputUnavailableError
from hvd_elastic_keras.data.input.pipeline import Pipeline
from hvd_elastic_keras.data.plan.partition import Partition
from hvd_elastic_keras.data.sources.source import as_source
from hvd_elastic_keras.observe import notices as notices_module
from hvd_elastic_keras.observe.notices import notices

SIZE = 24
WHOLE = Share(0, 2)
Numbers = list[int]


def shuffled() -> tf.data.Dataset:
    """Another order for each iterator."""
    return tf.data.Dataset.range(SIZE).shuffle(SIZE, seed=3)


def uncounted() -> tf.data.Dataset:
    return shuffled().filter(lambda _: True)


def source_of(data: Any, **options: Any) -> Any:
    return as_source(data, seed=0, shuffle=True, name="the data", **options)


def epoch_of(source: Any, epoch: int, first_step: int = 0) -> Numbers:
    partition = Partition(source.num_examples, 8, 4)
    batches = source.batches(epoch, partition, WHOLE, first_step)
    return [int(n) for _, batch in batches for n in batch]


@pytest.mark.parametrize("dataset", [shuffled, uncounted])
def test_an_epoch_has_its_order_whatever_this_process_has_read_before(
    dataset: Callable[[], tf.data.Dataset],
) -> None:
    in_one_go = source_of(dataset())
    orders = [epoch_of(in_one_go, epoch) for epoch in range(4)]
    assert all(sorted(order) == list(range(SIZE)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    late = source_of(dataset())
    assert epoch_of(late, 2, first_step=1) == orders[2][8:]
    assert epoch_of(late, 3) == orders[3]
    told = source_of(dataset(), num_examples=SIZE)  # counts nothing
    assert [epoch_of(told, 0), epoch_of(told, 3)] == [orders[0], orders[3]]
    looked = source_of(dataset())
    first = Pipeline(looked, 8, 4).first_batch()
    assert first.numpy().tolist() == orders[0][:8]
    assert epoch_of(looked, 1) == orders[1]


def test_epochs_made_of_one_shuffled_dataset_have_their_orders_too() -> None:
    def factory() -> Callable[[int], tf.data.Dataset]:
        base = shuffled()
        return lambda epoch: base.map(lambda n: n + 100 * epoch)

    in_one_go, late = source_of(factory()), source_of(factory())
    orders = [epoch_of(in_one_go, epoch) for epoch in range(3)]
    assert epoch_of(late, 2) == orders[2]


def test_who_skips_a_training_has_the_orders_of_the_next_one() -> None:
    found = []
    for reads in (True, False):
        dataset = shuffled()
        first = source_of(dataset)
        epoch_of(first, 0)
        if reads:
            epoch_of(first, 1)
            epoch_of(first, 2)
        else:
            first.finish(3)
        found.append(epoch_of(source_of(dataset), 0))
    assert found[0] == found[1]


def test_a_pass_whose_seeds_are_gone_takes_a_new_process() -> None:
    source = source_of(shuffled())
    epoch_of(source, 2)
    with pytest.raises(ElasticError, match="Pass 1 of the data has to be read again") as caught:
        epoch_of(source, 1)
    assert not isinstance(caught.value, DataError)  # which would end the job


def test_any_pass_of_a_fixed_order_can_be_read_again() -> None:
    for data in (tf.data.Dataset.range(SIZE), lambda e: tf.data.Dataset.range(SIZE).shuffle(9, e)):
        source = source_of(data)
        orders = [epoch_of(source, epoch) for epoch in (0, 2, 1)]
        assert [epoch_of(source, epoch) for epoch in (0, 2, 1)] == orders


def test_an_order_that_is_another_in_each_process_is_refused_where_it_has_to_repeat() -> None:
    tf.random.set_seed(None)
    unseeded = tf.data.Dataset.range(SIZE).shuffle(SIZE)
    source_of(unseeded)
    for data in (unseeded, lambda epoch: unseeded, (unseeded, lambda n: n)):
        with pytest.raises(DataError, match=r"The dataset of the data is .* unseeded shuffle"):
            source_of(data, must_repeat=True)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ((20, 18), "has 18 examples in epoch 1, but 20 in epoch 0"),
        ((20, 26), "has 24 examples in epoch 1, but 20 in epoch 0"),
        ((20, 12), "has 12 examples in epoch 1, but 20"),
        ((16, 24), "has 24 or more examples in epoch 1, but 16 in epoch 0"),
        ((16, 17), "has 17 or more examples in epoch 1, but 16 in epoch 0"),
    ],
)
def test_an_epoch_of_another_length_is_refused(lengths: Numbers, message: str) -> None:
    source = source_of(lambda epoch: tf.data.Dataset.range(lengths[epoch]))
    assert epoch_of(source, 0) == list(range(lengths[0]))
    with pytest.raises(DataError, match=message):
        epoch_of(source, 1)


def test_with_drop_remainder_only_steps_count() -> None:
    lengths = (20, 18, 16, 23, 24)
    source = source_of(lambda epoch: tf.data.Dataset.range(lengths[epoch]))
    pipeline = Pipeline(source, 8, 4, drop_remainder=True)
    assert [len(list(pipeline.batches(epoch, WHOLE, 0))) for epoch in range(4)] == [2, 2, 2, 2]
    with pytest.raises(DataError, match="has 24 or more examples in epoch 4, but 20"):
        list(pipeline.batches(4, WHOLE, 0))


def test_looking_at_the_first_batch_loses_nothing() -> None:
    pipeline = Pipeline(source_of(tf.data.Dataset.range(12)), 8, 4)
    assert pipeline.first_batch().numpy().tolist() == list(range(8))
    found = [n for batch in pipeline.batches(0, WHOLE, 0) for n in batch.data.numpy()]
    assert found == list(range(12))


class Counted:
    """A `preprocess` that knows on what it has run."""

    def __init__(self) -> None:
        self.done: Numbers = []

    def __call__(self, example: Any) -> Any:
        number, text = example

        def note(n: np.int64) -> np.float32:
            self.done.append(int(n))
            return np.float32(n)

        value = tf.ensure_shape(tf.numpy_function(note, [number], tf.float32), [])
        return value, tf.strings.length(text)


def raw() -> tf.data.Dataset:
    return tf.data.Dataset.range(20).map(lambda n: (n, tf.strings.as_string(n)))


def test_each_worker_prepares_its_own_examples_and_nothing_in_a_replay() -> None:
    partition = Partition(20, 8, 4)
    prepared: list[Numbers] = []
    for share, first_step in ((Share(0, 1), 0), (Share(1, 2), 1)):
        counted = Counted()
        source = source_of((raw(), counted))
        assert source.num_examples == 20
        for ids, (values, lengths) in source.batches(0, partition, share, first_step):
            np.testing.assert_array_equal(values, ids)
            np.testing.assert_array_equal(lengths, [len(str(i)) for i in ids.numpy()])
        prepared.append(sorted(counted.done))
    assert prepared == [[*range(4), *range(8, 12), *range(16, 20)], [*range(12, 16)]]


def test_what_was_prepared_ahead_is_there_after_a_change_of_shares() -> None:
    source = source_of((raw(), Counted()))
    partition = Partition(20, 4, 4)
    assert next(source.batches(0, partition, Share(0, 1), 0))[0].numpy().tolist() == [*range(4)]
    reader = source._readers[4]
    replays: Numbers = []
    reader._replay = lambda *args: replays.append(1)
    assert next(source.batches(0, partition, Share(0, 1), 0))[0].numpy().tolist() == [*range(4)]
    assert next(source.batches(0, partition, Share(0, 1), 1))[0].numpy().tolist() == [*range(4, 8)]
    assert not replays
    assert reader._pass == 0


def test_the_example_that_preprocess_fails_on_is_named() -> None:
    def fails(example: Any) -> Any:
        def check(n: np.int64) -> np.int64:
            if n == 13:
                raise KeyError("no such label")
            return n

        return tf.ensure_shape(tf.numpy_function(check, [example[0]], tf.int64), [])

    source = source_of((raw(), fails))
    message = "preprocess fails on example 13 of the data: KeyError"
    with pytest.raises(InputUnavailableError, match=message):
        list(source.batches(0, Partition(20, 8, 4), WHOLE, 0))


def test_counting_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices_module, "LINE_INTERVAL_S", 0.0)
    told: list[str] = []
    notices.report_to(lambda notice: told.append(notice.text))
    source = source_of(tf.data.Dataset.range(600).filter(lambda n: n < 500))
    notices.report_to(None)
    assert source.num_examples == 500
    assert any("assert_cardinality(n)" in t and "256 examples so far" in t for t in told)
    with pytest.raises(DataError, match="is empty"):
        source_of(tf.data.Dataset.range(9).filter(lambda n: n > 10))


def test_a_batch_that_cannot_be_read_is_not_passed_over() -> None:
    def fails_once(n: int) -> int:
        if n == 5:
            raise OSError("the disk is gone")
        return n

    data = tf.data.Dataset.range(SIZE).map(
        lambda n: tf.ensure_shape(tf.numpy_function(fails_once, [n], tf.int64), [])
    )
    source = source_of(data)
    for _ in range(2):
        with pytest.raises(
            InputUnavailableError, match="Batch 0 of pass 0 over the data cannot be read"
        ):
            epoch_of(source, 0)
