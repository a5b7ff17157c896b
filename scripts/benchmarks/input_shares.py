"""Processor time of a worker's input per pass, for a half and a quarter of each batch.

    scripts/bench input_shares

Each pipeline is read as plain Keras reads it, and then as 1, 2 and 4 workers do: whole, and by the
first of two and of four workers. All run in this process, in turn; the best of some turns counts.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.data.input.batch_pipeline import BatchPipeline
from hvd_elastic_keras.data.sources.dataset_batches import DatasetBatches
from hvd_elastic_keras.data.sources.split_dataset import split
from hvd_elastic_keras.step.partition.planning.row_wise import is_row_wise

BATCH = 64
PICTURES = 640
ROWS = 16_000
ROWS_OF_BATCH = 256
WORKERS = (1, 2, 4)
AUTO = tf.data.AUTOTUNE
_REPEATS = flags.DEFINE_integer("repeats", 5, "Turns of which the best counts.", lower_bound=1)


def write_pictures(folder: Path) -> None:
    """Writes JPEG files of two classes."""
    draw = np.random.default_rng(0)
    for number in range(PICTURES):
        small = draw.integers(0, 255, (16, 16, 3))
        large = tf.image.resize(small, (480, 480), method="bicubic")
        picture = tf.cast(tf.clip_by_value(large, 0, 255), tf.uint8)
        path = folder / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(tf.io.encode_jpeg(picture).numpy())


def folder_of_pictures(scratch: Path) -> tf.data.Dataset:
    """Is a folder as Keras's tutorials read it, scaled in batches."""
    data = keras.utils.image_dataset_from_directory(
        scratch / "pictures", image_size=(160, 160), batch_size=BATCH, seed=3, verbose=False
    )
    return data.map(lambda x, y: (x / 255.0, y)).prefetch(AUTO)


def records(scratch: Path) -> tf.data.Dataset:
    """Is a TFRecord file of pictures, decoded and augmented in parallel."""
    form = {"picture": tf.io.FixedLenFeature([], tf.string)}

    def parse(record: tf.Tensor) -> tf.Tensor:
        picture = tf.io.parse_single_example(record, form)["picture"]
        picture = tf.image.resize(tf.io.decode_jpeg(picture, channels=3), (160, 160))
        return tf.image.random_flip_left_right(picture) / 255

    data = tf.data.TFRecordDataset(str(scratch / "pictures.tfrecord")).shuffle(100)
    return data.map(parse, num_parallel_calls=AUTO).batch(BATCH).prefetch(AUTO)


def write_records(scratch: Path) -> None:
    """Writes the pictures into a TFRecord file."""
    with tf.io.TFRecordWriter(str(scratch / "pictures.tfrecord")) as writer:
        for path in sorted((scratch / "pictures").glob("*/*.jpg")):
            picture = tf.train.Feature(bytes_list=tf.train.BytesList(value=[path.read_bytes()]))
            features = tf.train.Features(feature={"picture": picture})
            writer.write(tf.train.Example(features=features).SerializeToString())


def table(scratch: Path) -> tf.data.Dataset:
    """Is a CSV file whose lines are parsed one by one."""

    def parse(line: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        *columns, label = tf.io.decode_csv(line, [0.0] * 20 + [0])
        return tf.math.log(tf.stack(columns) + 1), label

    lines = tf.data.TextLineDataset(str(scratch / "table.csv")).skip(1).shuffle(1000)
    return lines.map(parse, num_parallel_calls=AUTO).batch(ROWS_OF_BATCH).prefetch(AUTO)


def write_table(scratch: Path) -> None:
    """Writes the CSV file."""
    draw = np.random.default_rng(0)
    lines = [",".join(f"{x:.4f}" for x in draw.random(20)) + ",1" for _ in range(ROWS)]
    (scratch / "table.csv").write_text("\n".join(["header", *lines]))


def seconds(work: Callable[[], None]) -> float:
    """Returns the processor time of a call."""
    began = time.process_time()
    work()
    return time.process_time() - began


def plain_pass(dataset: tf.data.Dataset) -> Callable[[], None]:
    """Returns a function that reads the dataset once."""

    def read() -> None:
        for _ in dataset:
            pass

    return read


def worker_pass(dataset: tf.data.Dataset, workers: int) -> Callable[[], None]:
    """Returns a function that reads one pass as the first of some workers."""
    parts = split(dataset, 1, is_row_wise)
    pipeline = BatchPipeline(DatasetBatches(dataset, "x", parts=parts), lambda size: 1)
    share = Share(0, pipeline.num_micro_batches // workers)
    number = iter(range(1_000))

    def read() -> None:
        for _ in pipeline.batches(next(number), share, 0):
            pass

    return read


def main(arguments: Sequence[str]) -> None:
    """Prints the processor time of each share, divided by the share of plain Keras's time."""
    if len(arguments) > 1:
        raise app.UsageError(f"unknown arguments: {arguments[1:]}")
    keras.utils.set_random_seed(1)
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        write_pictures(scratch / "pictures")
        write_records(scratch)
        write_table(scratch)
        print(f"{'':>20} {'plain Keras':>12}" + "".join(f"{f'1 of {n}':>18}" for n in WORKERS))
        for make in (folder_of_pictures, records, table):
            passes = [plain_pass(make(scratch))]
            passes += [worker_pass(make(scratch), workers) for workers in WORKERS]
            turns = [[seconds(read) for read in passes] for _ in range(_REPEATS.value + 1)]
            plain, *own = (min(times) for times in zip(*turns[1:], strict=True))  # the first traces
            text = f"{make.__name__.replace('_', ' '):>20} {plain:>10.2f} s"
            for workers, time_s in zip(WORKERS, own, strict=True):
                text += f"{time_s:>8.2f} s ({time_s / plain * workers:.2f})"
            print(text, flush=True)
        print("In parentheses: against the worker's share of the time of plain Keras.")


if __name__ == "__main__":
    app.run(main)
