"""The input: time from a restart to the first batch, examples per second, and waits of steps.

The restart is at example n. The steps that wait for their batch take 10 ms.

    scripts/bench input                        # all three
    scripts/bench input --parts=restart --skip_limit=100000

Each comparison runs in this one process, its two sides in turn. The best of some repetitions
counts, because disturbances only make things slower.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from absl import app, flags

from hvd_elastic_keras import TFRecordSource
from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.data.plan.partition import Partition
from hvd_elastic_keras.data.sources.source import as_source
from model_zoo import digits

BATCH = 128
STEP_S = 0.010
EPOCHS = 20
"""Epochs in which steps wait."""
WHOLE = Share(0, 1)
_PARTS = flags.DEFINE_multi_enum(
    "parts", ["restart", "speed", "wait"], ["restart", "speed", "wait"], "What to run."
)
_OFFSETS = flags.DEFINE_list("offsets", ["0", "10000", "1000000", "100000000"], "Examples.")
_SKIP_LIMIT = flags.DEFINE_integer(
    "skip_limit", 1_000_000, "Restarts of dataset.skip(n) with a larger n are extrapolated."
)
_REPEATS = flags.DEFINE_integer(
    "repeats", 5, "Repetitions of which the best counts.", lower_bound=1
)
_EXAMPLES = flags.DEFINE_integer("examples", 60_000, "Examples of an epoch, for speed.")
FEATURES = {
    "x": tf.io.FixedLenFeature([28 * 28], tf.float32),
    "y": tf.io.FixedLenFeature([], tf.int64),
}
Epoch = Callable[[], Iterator[Any]]


class Synthetic:
    """Examples computed from their index."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        return np.full(64, index % 1000, np.float32), np.int64(index % 10)


class InMemory:
    """Rows of arrays, one at a time."""

    def __init__(self, x: Any, y: Any) -> None:
        self._x, self._y = x, y

    def __len__(self) -> int:
        return len(self._y)

    def __getitem__(self, index: int) -> Any:
        return self._x[index], self._y[index]


def seconds(work: Callable[[], Any]) -> float:
    """Returns the time of a call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def best_of(work: Callable[[], Any]) -> float:
    """Returns the shortest time of some calls."""
    return min(seconds(work) for _ in range(_REPEATS.value))


# --- restart -----------------------------------------------------------------------------


def light_map(example: Any) -> Any:
    """Does a little work per example."""
    x, y = example
    return x / 255.0, y


def measure_restarts() -> None:
    """Prints the times of an index source and of `skip`."""
    offsets = [int(n) for n in _OFFSETS.value]
    size = max(offsets) + 10 * BATCH
    source = as_source((Synthetic(size), light_map), seed=1, shuffle=True, name="the data")
    partition = Partition(size, BATCH, BATCH)

    def restart(offset: int) -> None:
        batches = source.batches(0, partition, WHOLE, offset // BATCH)
        next(batches)

    def example(index: tf.Tensor) -> Any:
        return light_map((tf.fill([64], tf.cast(index % 1000, tf.float32)), index % 10))

    def skip(offset: int) -> None:
        dataset = tf.data.Dataset.range(size).map(example)
        next(iter(dataset.skip(offset).batch(BATCH).prefetch(2)))

    restart(0)  # the first use of these operations is not measured
    skip(0)
    times = {n: best_of(lambda n=n: restart(n)) for n in offsets}
    skips = {n: best_of(lambda n=n: skip(n)) for n in offsets if n <= _SKIP_LIMIT.value}
    print(f"{'restart at example':>20} {'source':>10} {'to n=0':>8} {'dataset.skip':>14}")
    for n in offsets:
        ratio = times[n] / times[offsets[0]]
        print(f"{n:>20,} {times[n]:>8.3f} s {ratio:>8.2f} {skip_text(skips, n):>14}", flush=True)


def skip_text(skips: Mapping[int, float], n: int) -> str:
    """Returns the time of skip(n), measured or in proportion to the largest n measured."""
    if n in skips:
        return f"{skips[n]:.3f} s"
    if not skips or not max(skips):
        return "not measured"
    longest = max(skips)
    return f"{skips[longest] * n / longest:,.0f} s (extrapolated from {longest:,})"


# --- examples per second -----------------------------------------------------------------


def parse(record: tf.Tensor) -> Any:
    """Maps a record to (x, y)."""
    example = tf.io.parse_single_example(record, FEATURES)
    return example["x"], example["y"]


def write_records(path: Path, x: Any, y: Any) -> None:
    """Writes a TFRecord file of tf.train.Example."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row, label in zip(x, y, strict=True):
            features = tf.train.Features(
                feature={
                    "x": tf.train.Feature(float_list=tf.train.FloatList(value=row)),
                    "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                }
            )
            writer.write(tf.train.Example(features=features).SerializeToString())


def ours(data: Any, size: int) -> Epoch:
    """Returns an epoch of a single worker."""
    source = as_source(data, seed=1, shuffle=True, name="the data")
    return lambda: source.batches(0, Partition(size, BATCH, BATCH), WHOLE, 0)


def plain(dataset: tf.data.Dataset, prepare: Callable[..., Any] | None) -> Epoch:
    """Returns an epoch of the usual pipeline."""
    dataset = dataset.shuffle(10_000, seed=1)
    if prepare:
        dataset = dataset.map(prepare, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.batch(BATCH).prefetch(tf.data.AUTOTUNE)
    return lambda: iter(dataset)


def heavy(x: tf.Tensor, y: tf.Tensor) -> Any:
    """Does some tenths of a millisecond of work per example."""
    image = tf.reshape(x, [28, 28, 1])
    image = tf.image.resize(image, [112, 112], antialias=True)
    return tf.image.resize(image, [28, 28]), y


def measure_speed() -> None:
    """Prints examples per second of both pipelines, and the ratio."""
    size = _EXAMPLES.value
    random = np.random.RandomState(0)
    x = random.rand(size, 28 * 28).astype(np.float32)
    y = random.randint(0, 10, size)
    few = max(BATCH, size // 10)
    from_arrays = tf.data.Dataset.from_tensor_slices((x, y))
    from_rows = tf.data.Dataset.from_generator(
        lambda: iter(zip(x, y, strict=True)),
        output_signature=(tf.TensorSpec([28 * 28], tf.float32), tf.TensorSpec([], tf.int64)),
    )
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "train.tfrecord")
        write_records(path, x, y)
        records = tf.data.TFRecordDataset(str(path))
        cases = {
            "TFRecord, parsed": (
                size,
                ours((TFRecordSource(path), parse), size),
                plain(records, parse),
            ),
            "TFRecord, parsed and resized": (
                few,
                ours((TFRecordSource(path), lambda r: heavy(*parse(r))), few),
                plain(records.take(few), lambda r: heavy(*parse(r))),
            ),
            "arrays": (size, ours((x, y), size), plain(from_arrays, None)),
            "source of rows": (size, ours(InMemory(x, y), size), plain(from_rows, None)),
            "source of rows, preprocess": (
                size,
                ours((InMemory(x, y), light_map), size),
                plain(from_rows, lambda x, y: light_map((x, y))),
            ),
        }
        print(f"{'':>30} {'examples/s':>12} {'plain tf.data':>14} {'ratio':>7}")
        for name, (count, mine, other) in cases.items():
            compare(name, count, mine, other)


def compare(name: str, count: int, mine: Callable[[], Any], other: Callable[[], Any]) -> None:
    """Measures both in turn, so that a disturbance of the machine hits both."""
    times: list[list[float]] = [[], []]
    for _ in range(_REPEATS.value):
        for place, pipeline in enumerate((mine, other)):
            times[place].append(seconds(lambda p=pipeline: read_all(p(), count)))
    best = [count / min(t) for t in times]
    print(f"{name:>30} {best[0]:>12,.0f} {best[1]:>14,.0f} {best[0] / best[1]:>7.2f}", flush=True)


def read_all(batches: Iterator[Any], count: int) -> None:
    """Takes batches as a training would, and checks their number."""
    steps = sum(1 for _ in batches)
    if steps != -(-count // BATCH):
        raise RuntimeError(f"{steps} batches were read, expected {-(-count // BATCH)}")


# --- waiting -----------------------------------------------------------------------------


def scaled(example: Any) -> Any:
    """Is a `preprocess` with some work: from 8 x 8 pixels to 16 x 16."""
    x, y = example
    return tf.image.resize(x, [16, 16]), y


def parsed_digit(record: tf.Tensor) -> Any:
    """Maps a record to an image and its label."""
    form = {**FEATURES, "x": tf.io.FixedLenFeature([8, 8, 1], tf.float32)}
    example = tf.io.parse_single_example(record, form)
    return example["x"], example["y"]


def measure_waiting() -> None:
    """Prints how long steps wait for batches of the digits, in a training that only sleeps."""
    x, y = digits.load("train")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "digits.tfrecord")
        write_records(path, x.reshape(len(x), -1), y)
        cases = {
            "arrays": (x, y),
            "source, preprocess": (InMemory(x, y), scaled),
            "TFRecord, parsed": (TFRecordSource(path), parsed_digit),
        }
        print(f"{'a step of ' + str(round(STEP_S * 1e3)) + ' ms waits for':>30}", end="")
        print(f" {'on average':>12} {'of a step':>10} {'median':>12} {'new epoch':>12}")
        for name, data in cases.items():
            first, others = waits(data, len(y))
            each = statistics.mean([*first, *others])
            print(
                f"{name:>30} {each * 1e3:>9.3f} ms {each / STEP_S:>10.2%} "
                f"{statistics.median(others) * 1e3:>9.3f} ms "
                f"{statistics.median(first) * 1e3:>9.3f} ms",
                flush=True,
            )


def waits(data: Any, size: int) -> tuple[list[float], list[float]]:
    """Returns the seconds that steps wait: the first steps of the epochs, and the others."""
    source = as_source(data, seed=1, shuffle=True, name="the data")
    partition = Partition(size, BATCH, BATCH)
    first: list[float] = []
    others: list[float] = []
    for epoch in range(EPOCHS + 1):
        batches = source.batches(epoch, partition, WHOLE, 0)
        for step in range(partition.steps_per_epoch):
            took = seconds(lambda b=batches: next(b))
            if epoch:  # the epoch before is the first use of everything
                (others if step else first).append(took)
            time.sleep(STEP_S)
    return first, others


def main(arguments: Sequence[str]) -> None:
    """Runs the parts that were asked for."""
    if len(arguments) > 1:
        raise app.UsageError(f"unknown arguments: {arguments[1:]}")
    if "restart" in _PARTS.value:
        measure_restarts()
    if "speed" in _PARTS.value:
        measure_speed()
    if "wait" in _PARTS.value:
        measure_waiting()


if __name__ == "__main__":
    app.run(main)
