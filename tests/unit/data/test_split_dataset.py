"""Each worker runs the maps of a user's dataset on its own rows, and gets the user's numbers."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.data.input.batch_pipeline import BatchPipeline
from hvd_elastic_keras.data.plan.fit_passes import FitIterators, Passes, Reader
from hvd_elastic_keras.data.sources import global_draws
from hvd_elastic_keras.data.sources.dataset_batches import DatasetBatches, known_length
from hvd_elastic_keras.data.sources.iterators import check_order
from hvd_elastic_keras.data.sources.split_dataset import split
from hvd_elastic_keras.step.partition.planning.row_wise import is_row_wise

AUTO = tf.data.AUTOTUNE
SEED = 5
ROUNDING = 1e-6
"""A kernel may round the last numbers of a tensor differently: those that fill no vector."""
Make = Callable[[], tf.data.Dataset]


@pytest.fixture(autouse=True)
def _seeded() -> Any:
    keras.utils.set_random_seed(1)
    yield
    tf.random.set_seed(None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of different sizes in two classes."""
    root = tmp_path_factory.mktemp("pictures")
    draw = np.random.default_rng(0)
    for name in ("cats", "dogs"):
        (root / name).mkdir()
        for number in range(12):
            height, width = draw.integers(8, 20, 2)
            picture = draw.integers(0, 255, (height, width, 3)).astype(np.uint8)
            (root / name / f"{number}.png").write_bytes(tf.io.encode_png(picture).numpy())
    return root


def numbers(count: int = 22) -> tf.data.Dataset:
    return tf.data.Dataset.range(count)


def pairs(count: int = 22) -> tf.data.Dataset:
    x = np.arange(count * 3, dtype=np.float32).reshape(count, 3)
    return tf.data.Dataset.from_tensor_slices((x, np.arange(count)))


def halved(x: tf.Tensor, y: tf.Tensor) -> Any:
    return x / 2, y


def named(x: tf.Tensor, y: tf.Tensor) -> Any:
    return {"x": tf.exp(x / 7), "first": x[..., 0]}, tf.one_hot(y, 4)


def words() -> tf.data.Dataset:
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([7, 9], tf.int64)), -1
    )
    texts = tf.data.Dataset.from_tensor_slices(["a", "b", "c", "a", "b"] * 4)
    return texts.map(lambda text: (table.lookup(text), tf.strings.length(text)))


def lines_of_different_lengths() -> tf.data.Dataset:
    def make() -> Any:
        for n in range(21):
            yield np.arange(n % 5 + 1, dtype=np.float32), n

    spec = (tf.TensorSpec([None]), tf.TensorSpec([], tf.int64))
    lines = tf.data.Dataset.from_generator(make, output_signature=spec)
    return lines.map(lambda x, y: (tf.pad(x, [[0, 5 - tf.size(x)]]), y)).map(
        lambda x, y: (tf.ensure_shape(x, [5]), y)
    )


def overwritten(array: Any) -> Any:
    array += 2
    return array


def by_numpy(x: tf.Tensor) -> tf.Tensor:
    x = tf.numpy_function(overwritten, [tf.stack([x, x * x])], tf.int64)
    return tf.ensure_shape(x, [2])


PIPELINES: dict[str, Make] = {
    "map, shuffle, batch": lambda: pairs().map(halved).shuffle(8, seed=3).batch(6).prefetch(2),
    "shuffle, parallel map, batch": lambda: (
        pairs().shuffle(8, seed=3).map(halved, num_parallel_calls=AUTO).batch(6).prefetch(AUTO)
    ),
    "two maps, the second one gives a dict": lambda: (
        pairs().map(halved, num_parallel_calls=2).shuffle(30).map(named).batch(5)
    ),
    "repeat and take": lambda: numbers().map(lambda x: x * x).repeat(3).skip(5).take(40).batch(6),
    "batches are repeated and shuffled": lambda: (
        numbers().map(lambda x: x * x).batch(4, drop_remainder=True).shuffle(3, seed=1).repeat(2)
    ),
    "an order that stays": lambda: (
        numbers().map(lambda x: -x).shuffle(22, seed=2, reshuffle_each_iteration=False).batch(8)
    ),
    "images zipped with labels": lambda: (
        tf.data.Dataset.zip(
            (numbers().map(lambda x: tf.cast(x, tf.float32) / 3), numbers().map(lambda x: x % 2))
        )
        .shuffle(7)
        .batch(6)
    ),
    "enumerate": lambda: (
        numbers().map(lambda x: x + 1).enumerate().map(lambda i, x: i * x).batch(4)
    ),
    "a table": lambda: words().shuffle(20).batch(3),
    "rows that a generator gives in different sizes": lambda: lines_of_different_lengths().batch(4),
    "deterministic=False": lambda: (
        numbers().map(lambda x: x * 2, num_parallel_calls=4, deterministic=False).batch(4)
    ),
    "a shuffle above a cache": lambda: (
        numbers().map(lambda x: x + 2).cache().shuffle(22).map(lambda x: x * 3).batch(5)
    ),
    "maps above a filter": lambda: (
        numbers(40).map(lambda x: x + 1).filter(lambda x: x % 3 > 0).map(lambda x: x * x).batch(5)
    ),
    "Python code in parallel calls": lambda: (
        numbers().map(by_numpy, num_parallel_calls=3).shuffle(8, seed=3).batch(6)
    ),
    "a branch and a loop": lambda: (
        numbers()
        .map(lambda x: tf.cond(x > 4, lambda: x, lambda: -x))
        .map(
            lambda x: tf.while_loop(lambda i, _: i < x, lambda i, s: (i + 1, s + i), [x * 0, x])[1]
        )
        .batch(6)
    ),
    "a map of batches": lambda: (
        pairs().shuffle(9).batch(6).map(lambda x, y: (x / 255.0, tf.one_hot(y, 3))).prefetch(1)
    ),
    "maps of elements and two of batches": lambda: (
        pairs()
        .map(halved)
        .batch(6)
        .map(named, num_parallel_calls=2)
        .shuffle(3)
        .map(lambda x, y: (x["x"] * 2, y[:, 1:]))
    ),
    "a map of batches above a cache and a filter": lambda: (
        numbers().batch(4).cache().filter(lambda x: x[0] != 8).map(lambda x: x * 2)
    ),
    "a map of padded batches": lambda: (
        numbers().map(tf.range).padded_batch(6).map(lambda x: (x * 2, x > 3))
    ),
    "assert_cardinality": lambda: (
        numbers()
        .filter(lambda x: x > 1)
        .map(lambda x: x * 5)
        .apply(tf.data.experimental.assert_cardinality(20))
        .batch(6)
    ),
}
WHOLE: dict[str, tuple[Make, str]] = {
    "no map": (lambda: numbers().shuffle(9).batch(4), ""),
    "a map below a cache": (lambda: numbers().map(lambda x: x + 1).cache().batch(4), ""),
    "a map below a filter": (
        lambda: numbers().map(lambda x: x + 1).filter(lambda x: x > 3).batch(4),
        "stands below filter(...)",
    ),
    "a map below a choice between datasets": (
        lambda: tf.data.Dataset.sample_from_datasets(
            [numbers().map(lambda x: x + 1), numbers()], seed=3
        ).batch(4),
        "stands below sample_from_datasets(...)",
    ),
    "rows of different lengths": (
        lambda: numbers().map(lambda x: tf.range(x % 2 + 1)).padded_batch(4),
        "different shapes",
    ),
    "ragged rows": (
        lambda: (
            numbers().map(lambda x: tf.RaggedTensor.from_row_lengths(tf.range(3), [1, 2])).batch(2)
        ),
        "different shapes",
    ),
    "a map that mixes rows": (
        lambda: numbers().map(lambda x: x + 1).batch(4).map(lambda x: x - tf.reduce_mean(x)),
        "may mix the rows",
    ),
    "batches that were made into something else": (
        lambda: (
            numbers()
            .batch(4)
            .flat_map(lambda x: tf.data.Dataset.from_tensors((x, tf.range(8))))
            .map(lambda x, y: (x * 2, y * 2))
        ),
        "map(...)",
    ),
    "Python code": (
        lambda: (
            numbers()
            .map(lambda x: tf.ensure_shape(tf.py_function(lambda n: n + 1, [x], x.dtype), []))
            .batch(3)
        ),
        "calls Python code",
    ),
    "a function that counts its calls": (lambda: counted().batch(3), "has a state"),
    "seeded numbers, one call after the other": (
        lambda: numbers().map(lambda x: tf.random.uniform([]) + tf.cast(x, tf.float32)).batch(3),
        "seeded random numbers",
    ),
}


def drawing() -> tf.data.Dataset:
    """Returns numbers of a parallel map that draws."""
    return numbers().map(lambda x: x + tf.random.uniform([], 0, 99, tf.int64), num_parallel_calls=2)


LAYERS = keras.Sequential([keras.layers.RandomFlip(), keras.layers.RandomContrast(0.3)])
DRAWN: dict[str, Make] = {
    "batches that are shuffled inside": lambda: (
        numbers().batch(4).map(tf.random.shuffle, num_parallel_calls=2)
    ),
    "elements and then batches": lambda: (
        numbers()
        .map(lambda x: x + tf.random.uniform([], 0, 99, tf.int64), num_parallel_calls=2)
        .shuffle(9)
        .batch(4)
        .map(lambda x: tf.roll(x, tf.random.uniform([], 0, 4, tf.int32), 0), num_parallel_calls=2)
        .prefetch(1)
    ),
    "draws below operations that are made again": lambda: (
        tf.data.Dataset.sample_from_datasets([drawing(), drawing().concatenate(drawing())], seed=3)
        .batch(6)
        .unbatch()
        .ignore_errors()
        .batch(2)
        .rebatch(4)
    ),
    "draws below groups by length": lambda: (
        drawing()
        .bucket_by_sequence_length(lambda x: tf.cast(x % 2 + 1, tf.int32), [2], [4, 4])
        .take(3)
    ),
    "draws below another dataset for each element": lambda: (
        drawing().flat_map(lambda x: tf.data.Dataset.from_tensors(x).repeat(2)).batch(4)
    ),
    "draws below windows": lambda: (
        drawing()
        .scan(tf.constant(0, tf.int64), lambda total, x: (total + x, total + x))
        .take_while(lambda x: x < 10**9)
        .unique()
        .shard(2, 0)
        .window(2, shift=1, drop_remainder=True)
        .flat_map(lambda window: window.batch(2))
        .batch(3)
    ),
    "mixup with two halves of the data": lambda: tf.data.Dataset.zip(
        (numbers().shuffle(9).batch(4), numbers().shuffle(9).batch(4))
    ).map(
        lambda a, b: tf.cast(a, tf.float32) * tf.random.gamma([1], 0.4) + tf.cast(b, "float32"),
        num_parallel_calls=tf.data.AUTOTUNE,
    ),
    "Keras's layers on padded batches": lambda: (
        tf.data.Dataset.range(8)
        .map(lambda x: tf.random.uniform([4 + x % 2, 4, 1]), num_parallel_calls=2)
        .padded_batch(4)
        .map(lambda x: LAYERS(x, training=True))
    ),
    "a filter above": lambda: (
        numbers()
        .map(lambda x: x + tf.random.uniform([], 0, 99, tf.int64), num_parallel_calls=2)
        .filter(lambda x: x % 2 == 0)
        .batch(4)
    ),
}
"""Maps that draw random numbers and have to stay in the pipeline."""
KEPT: list[Any] = []
"""Variables of maps: a dataset does not keep them."""


def counted() -> tf.data.Dataset:
    calls = tf.Variable(0, dtype=tf.int64)
    KEPT.append(calls)
    return numbers().map(lambda x: x + 0 * calls.assign_add(1))


def made(make: Make) -> tf.data.Dataset:
    """Returns a dataset with the same seeds in each call."""
    keras.utils.set_random_seed(1)
    return make()


def pipeline_of(dataset: tf.data.Dataset) -> BatchPipeline:
    parts = split(dataset, SEED, is_row_wise)
    assert parts.taken
    check_order(dataset, "x", (*parts.taken, *parts.drawn))
    return BatchPipeline(DatasetBatches(dataset, "x", parts=parts), lambda size: 1)


def rows(pipeline: BatchPipeline, number: int, share: Share, first: int = 0) -> list[Any]:
    return [
        tf.nest.map_structure(np.asarray, batch.data)
        for batch in pipeline.batches(number, share, first)
    ]


def assert_same(found: list[Any], expected: list[Any], *, rtol: float = 0) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        tf.nest.map_structure(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol), a, b)


def joined(parts: list[list[Any]]) -> list[Any]:
    """Puts the rows of several workers together, batch by batch."""
    return [
        tf.nest.map_structure(lambda *leaves: np.concatenate(leaves), *batches)
        for batches in zip(*parts, strict=True)
    ]


def whole_batches(dataset: tf.data.Dataset) -> list[Any]:
    return [tf.nest.map_structure(np.asarray, batch) for batch in dataset]


@pytest.mark.parametrize("case", PIPELINES)
def test_rows_are_those_of_the_users_dataset_in_every_pass(case: str) -> None:
    user, ours = made(PIPELINES[case]), pipeline_of(made(PIPELINES[case]))
    for number in range(2):
        found = rows(ours, number, Share(0, ours.num_micro_batches))
        assert_same(found, whole_batches(user), rtol=ROUNDING if "of batches" in case else 0)


@pytest.mark.parametrize("case", PIPELINES)
def test_the_rows_of_three_workers_make_the_batch(case: str) -> None:
    workers = [pipeline_of(made(PIPELINES[case])) for _ in range(3)]
    cuts = [Share(0, 1), Share(1, 1), Share(1, workers[0].num_micro_batches)]
    parts = [rows(worker, 0, share) for worker, share in zip(workers, cuts, strict=True)]
    expected = whole_batches(made(PIPELINES[case]))
    assert_same(joined(parts), expected, rtol=ROUNDING if "of batches" in case else 0)


@pytest.mark.parametrize("case", WHOLE)
def test_a_pipeline_that_cannot_be_taken_apart_is_read_whole(case: str) -> None:
    make, reason = WHOLE[case]
    dataset = make()
    parts = split(dataset, SEED, is_row_wise)
    assert parts.raw is dataset or case == "Python code"
    assert not parts.taken
    assert reason in parts.left if reason else not parts.left


def read_whole(dataset: tf.data.Dataset) -> BatchPipeline:
    parts = split(dataset, SEED, is_row_wise)
    assert not parts.taken
    check_order(dataset, "x", parts.drawn, is_in_order=parts.raw is not None)
    return BatchPipeline(DatasetBatches(dataset, "x", parts=parts), lambda size: 1)


@pytest.mark.parametrize("case", DRAWN)
def test_draws_of_a_whole_pipeline_are_the_same_for_all_workers(case: str) -> None:
    first, other = read_whole(made(DRAWN[case])), read_whole(made(DRAWN[case]))
    passes = [rows(first, number, Share(0, 4)) for number in range(3)]
    assert_same(rows(other, 2, Share(0, 4)), passes[2])  # a newcomer has not read the others
    for a, b in ((0, 1), (1, 2)):
        assert any(
            np.shape(x) != np.shape(y) or not np.allclose(x, y)
            for x, y in zip(passes[a], passes[b], strict=False)
        )


NEWCOMERS: dict[str, Make] = {
    "two shuffles": lambda: numbers().shuffle(12).map(lambda x: x * 2).shuffle(5).batch(4),
    "a cache above a shuffle": lambda: numbers().shuffle(12).cache().batch(4),
    "a cache between shuffles": lambda: numbers().shuffle(12).cache().shuffle(9).batch(4),
    "two shuffles above a cache": lambda: numbers().cache().shuffle(12).shuffle(9).batch(4),
    "many shuffles": lambda: (
        numbers().shuffle(4).shuffle(5).cache().shuffle(6).shuffle(7).map(lambda x: x * 2).batch(4)
    ),
    "a cache of batches": lambda: numbers().shuffle(12).map(lambda x: x * 2).batch(4).cache(),
    "draws below a cache": lambda: (
        numbers()
        .shuffle(12)
        .map(lambda x: x + tf.random.uniform([], 0, 99, tf.int64), num_parallel_calls=2)
        .cache()
        .shuffle(9)
        .batch(4)
    ),
}


def fit_input(make: Make, train: Passes | None, evaluate: Passes | None) -> BatchPipeline:
    """Returns the input of a `fit` of four epochs, or of its evaluations."""
    dataset = made(make)
    reader = Reader.EVALUATION if train is None else Reader.TRAINING
    batches = dict.fromkeys(Reader) | {reader: known_length(dataset)}
    iterators = FitIterators(train, evaluate, batches, epochs=4, evaluated=range(4))
    parts = split(dataset, SEED, is_row_wise)
    source = DatasetBatches(dataset, "x", made=iterators, reader=reader, parts=parts)
    return BatchPipeline(source, lambda size: 1)


@pytest.mark.parametrize("case", NEWCOMERS)
def test_a_newcomer_reads_the_order_of_the_others(case: str) -> None:
    first, late = (fit_input(NEWCOMERS[case], Passes(), None) for _ in range(2))
    passes = [rows(first, number, Share(0, 4)) for number in range(4)]
    assert_same(rows(late, 3, Share(0, 4)), passes[3])
    expected = fit_input(NEWCOMERS[case], Passes(), None)
    assert_same(rows(expected, 0, Share(0, 4)), passes[0])


@pytest.mark.parametrize("case", ["a cache above a shuffle", "draws below a cache"])
def test_a_cache_keeps_the_elements_of_the_first_pass(case: str) -> None:
    ours = fit_input(NEWCOMERS[case], Passes(), None)
    passes = [np.concatenate(rows(ours, number, Share(0, 4))) for number in range(3)]
    for later in passes[1:]:
        np.testing.assert_array_equal(np.sort(later), np.sort(passes[0]))
    assert (case == "a cache above a shuffle") == (passes[0].tolist() == passes[1].tolist())


def test_an_evaluation_of_some_steps_is_not_read_to_its_end() -> None:
    """The data may have no end."""

    def endless() -> tf.data.Dataset:
        return numbers().shuffle(12).cache().repeat().batch(4)

    steps = Passes(2, goes_on=False)
    ours = fit_input(endless, None, steps)
    for number in range(3):
        assert len(list(itertools.islice(ours.batches(number, Share(0, 4), 0), 2))) == 2
    late = fit_input(endless, None, steps)
    assert len(list(itertools.islice(late.batches(2, Share(0, 4), 0), 2))) == 2


def some_files(number: tf.Tensor) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors(number).repeat(3)


ANY_ORDER: dict[str, Callable[[bool], tf.data.Dataset]] = {
    "a map": lambda keeps: (
        numbers().shuffle(12).map(lambda x: x + 1, 4, deterministic=keeps).batch(4)
    ),
    "an interleave below a map": lambda keeps: (
        tf.data.Dataset.range(5)
        .shuffle(5)
        .interleave(some_files, cycle_length=3, num_parallel_calls=3, deterministic=keeps)
        .map(lambda x: x * 2, num_parallel_calls=2, deterministic=keeps)
        .shuffle(15)
        .batch(4)
    ),
    "an interleave that is read whole": lambda keeps: (
        tf.data.Dataset.range(5)
        .interleave(some_files, cycle_length=3, num_parallel_calls=3, deterministic=keeps)
        .filter(lambda x: x > 0)
        .batch(4)
    ),
    "options": lambda keeps: numbers().shuffle(12).batch(4).with_options(order(keeps)),
}


def order(keeps: bool) -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = keeps
    return options


@pytest.mark.parametrize("case", ANY_ORDER)
def test_a_pipeline_that_may_leave_its_order_keeps_it(case: str) -> None:
    free = made(lambda: ANY_ORDER[case](False))
    parts = split(free, SEED, is_row_wise)
    check_order(free, "x", parts.taken, is_in_order=parts.raw is not None)
    ours = BatchPipeline(DatasetBatches(free, "x", parts=parts), lambda size: 1)
    user = made(lambda: ANY_ORDER[case](True))
    for number in range(2):
        assert_same(rows(ours, number, Share(0, 4)), whole_batches(user))


def test_pictures_of_a_folder_as_keras_reads_them(folder: Path) -> None:
    def make() -> tf.data.Dataset:
        return keras.utils.image_dataset_from_directory(
            folder, image_size=(10, 12), batch_size=5, seed=3, verbose=False
        )

    user, ours = made(make), pipeline_of(made(make))
    for number in range(2):
        assert_same(rows(ours, number, Share(0, 5)), whole_batches(user))


def test_a_worker_decodes_its_own_pictures_only(folder: Path) -> None:
    files = sorted(map(str, folder.glob("*/*.png")))
    broken = [*files[:4], os.devnull, *files[5:]]

    def make() -> tf.data.Dataset:
        def load(path: tf.Tensor) -> tf.Tensor:
            return tf.image.resize(tf.io.decode_png(tf.io.read_file(path), channels=3), (4, 4))

        return tf.data.Dataset.from_tensor_slices(broken).map(load, AUTO).batch(6)

    parts = split(make(), SEED, is_row_wise)
    source = DatasetBatches(make(), "x", first=tf.zeros([6, 4, 4, 3]), parts=parts)
    ours = BatchPipeline(source, lambda size: 1)
    assert len(rows(ours, 0, Share(0, 3))) == 4
    with pytest.raises(DataError, match=r"^map\(\.\.\.\) fails on example 4 of batch 0 of pass 1"):
        rows(ours, 1, Share(3, 6))


def test_iterators_that_the_script_has_used_before_count() -> None:
    """Tutorials plot `dataset.take(1)`, and `adapt` reads the data once, before they train."""
    plain, shared = (pairs().map(halved).shuffle(22, seed=4).batch(6) for _ in range(2))
    for dataset in (plain, shared):
        next(iter(dataset.take(1)))
    expected = [whole_batches(plain) for _ in range(2)]
    ours = pipeline_of(shared)
    assert_same(rows(ours, 0, Share(0, 6)), expected[0])
    assert_same(rows(ours, 1, Share(0, 6)), expected[1])
    assert_same(whole_batches(shared), whole_batches(plain))


def test_other_shares_read_nothing_again() -> None:
    read: list[int] = []

    def note(n: np.int64) -> np.int64:
        read.append(int(n))
        return n

    def make() -> tf.data.Dataset:
        noted = numbers(40).map(
            lambda n: tf.ensure_shape(tf.numpy_function(note, [n], n.dtype), [])
        )
        return noted.map(lambda n: n * 2).batch(4)

    ours = pipeline_of(make())
    first = ours.batches(0, Share(0, 2), 0)
    seen = [next(first).data.numpy().tolist() for _ in range(3)]
    first.close()
    seen += [batch.tolist() for batch in rows(ours, 0, Share(2, 4), 3)]
    assert seen[:4] == [[0, 2], [8, 10], [16, 18], [28, 30]]
    assert read.count(12) == 1


def test_batches_before_an_element_that_fails_are_used() -> None:
    def make() -> tf.data.Dataset:
        def check(x: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies([tf.debugging.assert_less(x, tf.constant(9, tf.int64))]):
                return x + 1

        return numbers().map(check).batch(2)

    found = []
    with pytest.raises(DataError, match=r"map\(\.\.\.\) fails on example 1 of batch 4 of pass 0"):
        found.extend(pipeline_of(make()).batches(0, Share(0, 2), 0))
    assert len(found) == 4


def noisy(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.float32) + tf.random.normal([], stddev=0.1) + tf.random.uniform([2])


def sometimes(x: tf.Tensor) -> tf.Tensor:
    value = tf.cast(x, tf.float32)
    draw = tf.random.uniform([])
    return tf.cond(draw > 0.5, lambda: value + tf.random.uniform([]), lambda: value)


def flipped(x: tf.Tensor) -> tf.Tensor:
    picture = tf.reshape(tf.range(12.0), [2, 2, 3]) + tf.cast(x, tf.float32)
    picture = tf.image.random_flip_left_right(picture, seed=1)
    picture = tf.image.random_brightness(picture, 0.3)
    return tf.image.random_crop(tf.image.random_contrast(picture, 0.5, 2.0), [1, 2, 3])


def with_layers() -> tf.data.Dataset:
    layers = keras.Sequential(
        [keras.layers.RandomFlip("horizontal"), keras.layers.RandomContrast(0.4)]
    )
    KEPT.append(layers)
    pictures = numbers().map(
        lambda x: tf.reshape(tf.range(12.0), [2, 2, 3]) * tf.cast(x, tf.float32)
    )
    return pictures.map(lambda x: layers(x, training=True), num_parallel_calls=AUTO)


def with_generators() -> tf.data.Dataset:
    generator, seeds = tf.random.Generator.from_seed(3), keras.random.SeedGenerator(4)
    KEPT.extend((generator, seeds))

    def draw(x: tf.Tensor) -> tf.Tensor:
        noise = generator.normal([]) + generator.normal([])
        return tf.cast(x, tf.float32) + noise + keras.random.normal((2,), seed=seeds)

    return numbers().map(draw)


RANDOM: dict[str, Make] = {
    "parallel": lambda: numbers().map(noisy, num_parallel_calls=AUTO),
    "a branch": lambda: numbers().map(sometimes, num_parallel_calls=AUTO),
    "a tf.function": lambda: numbers().map(tf.function(noisy), num_parallel_calls=AUTO),
    "pictures": lambda: numbers().map(flipped, num_parallel_calls=AUTO).shuffle(9),
    "Keras's layers": with_layers,
    "generators": with_generators,
    "Python code": lambda: numbers().map(by_python, num_parallel_calls=AUTO),
}


@pytest.mark.parametrize("case", RANDOM)
def test_random_numbers_are_the_same_for_any_workers_and_differ_by_element_and_pass(
    case: str,
) -> None:
    def worker() -> BatchPipeline:
        return pipeline_of(made(lambda: RANDOM[case]().batch(6)))

    alone = worker()
    first, second = (rows(alone, number, Share(0, 6)) for number in range(2))
    parts = [rows(worker(), 0, share) for share in (Share(0, 2), Share(2, 6))]
    assert_same(joined(parts), first)
    assert_same(rows(worker(), 1, Share(0, 6), 2), second[2:])
    assert not np.array_equal(np.sort(np.concatenate(first), 0), np.sort(np.concatenate(second), 0))


def test_a_shuffle_inside_of_a_function_above_a_map_that_draws_is_refused() -> None:
    def inner(x: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors(x).repeat(3).shuffle(3)

    with pytest.raises(DataError, match="num_parallel_calls"):
        read_whole(drawing().flat_map(inner).batch(2))


def test_unseeded_numbers_are_drawn_too() -> None:
    tf.random.set_seed(None)
    assert len(rows(pipeline_of(numbers().map(noisy).batch(6)), 0, Share(0, 6))) == 4


def test_two_draws_and_two_maps_draw_different_numbers() -> None:
    def two(x: tf.Tensor) -> tf.Tensor:
        return tf.stack([tf.random.uniform([]), tf.random.uniform([])])

    def third(x: tf.Tensor) -> tf.Tensor:
        return tf.concat([x, [tf.random.uniform([])]], 0)

    tf.random.set_seed(None)
    (batch, *_) = rows(pipeline_of(numbers().map(two).map(third).batch(22)), 0, Share(0, 22))
    assert len(np.unique(batch)) == batch.size
    assert 0.3 < batch.mean() < 0.7


def shaken(picture: Any) -> Any:
    return (picture + np.random.normal() + random.random()).astype(np.float32)


def shifted(picture: tf.Tensor) -> tf.Tensor:
    return picture + np.random.randint(9)


def by_python(x: tf.Tensor) -> tf.Tensor:
    x = tf.ensure_shape(tf.numpy_function(shaken, [tf.cast(x, tf.float32)], tf.float32), [])
    return tf.ensure_shape(tf.py_function(shifted, [x], tf.float32), [])


def test_a_worker_calls_python_for_its_own_rows_only() -> None:
    called: list[int] = []

    def note(x: Any) -> Any:
        called.append(int(x))
        return x

    def by_note(x: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(note, [x], tf.int64), [])

    pipeline = pipeline_of(numbers(24).map(by_note, num_parallel_calls=2).batch(8))
    called.clear()  # of the first batch, to see its form
    rows(pipeline, 0, Share(2, 3))
    assert set(called) == {2, 10, 18}


@pytest.mark.parametrize("draw", [np.random.default_rng(5).normal, iter(range(99)).__next__])
def test_python_code_with_a_state_of_its_own_is_refused(draw: Callable[[], float]) -> None:
    def noisy_rows(x: tf.Tensor) -> tf.Tensor:
        y = tf.numpy_function(lambda n: np.float32(n + draw()), [x], tf.float32)
        return tf.ensure_shape(y, [])

    with pytest.raises(DataError, match=r"something else each time .* leave num_parallel"):
        pipeline_of(numbers().map(noisy_rows, num_parallel_calls=AUTO).batch(4))


@pytest.mark.parametrize("calls", [None, 3])
def test_python_code_draws_the_same_for_all_workers(calls: int | None) -> None:
    def make() -> tf.data.Dataset:
        pictures = numbers().shuffle(12).map(by_python, num_parallel_calls=calls)
        # A filter looks at all elements.
        return (pictures.filter(lambda x: True) if calls else pictures).batch(4)

    first, late = read_whole(made(make)), read_whole(made(make))
    passes = [rows(first, number, Share(0, 4)) for number in range(2)]
    with global_draws.undisturbed():
        keras.utils.set_random_seed(9)  # the newcomer's generators have another state
    assert_same(rows(late, 1, Share(0, 4)), passes[1])
    noise = [np.concatenate(p) % 1 for p in passes]
    assert not np.isclose(np.sort(noise[0]), np.sort(noise[1])).all()
    assert len(np.unique(np.round(noise[0], 4))) > 6
