"""Lines of Criteo's display advertising challenge: parsed, read, or made up.

A line has a label (1: clicked), 13 counts and 26 texts, separated by tabs. All except the label may
be empty. Source: Criteo Labs, "Display Advertising Challenge", 2014.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.errors import DataError

FILE = "train.txt"
NUM_COUNTS = 13
NUM_TEXTS = 26
NUM_FIELDS = NUM_COUNTS + NUM_TEXTS
VALIDATION_EVERY = 10
"""One line in this number is held out for validation."""


class MadeUpLines:
    """A source of lines in Criteo's format, with made-up clicks.

    Each field has a few values, some frequent and most rare. Each value has a weight and a vector.
    The sum of the weights and of the products of the vectors gives the chance of a click. A
    factorization machine can find this rule, a linear model cannot.
    """

    values_per_field = 20
    vector_size = 4

    def __init__(self, split: str, count: int) -> None:
        random = np.random.default_rng([0, split == "train"])
        frequency = 1 / np.arange(1, self.values_per_field + 1)
        places = random.choice(
            self.values_per_field, (count, NUM_FIELDS), p=frequency / frequency.sum()
        )
        self.chances = self._chances(places)
        self.clicks = random.random(count) < self.chances
        self._places = places

    def _chances(self, places: np.ndarray) -> np.ndarray:
        """Returns the chances of a click, of shape [count]. Both splits have the same rule."""
        rule = np.random.default_rng(1)
        weights = rule.normal(0, 0.1, (NUM_FIELDS, self.values_per_field))
        vectors = rule.normal(0, 0.25, (NUM_FIELDS, self.values_per_field, self.vector_size))
        fields = np.arange(NUM_FIELDS)
        of_line = vectors[fields, places]  # [count, fields, vector_size]
        products = of_line.sum(1) ** 2 - (of_line**2).sum(1)
        logits = weights[fields, places].sum(1) + 0.5 * products.sum(1) - 1.0
        return np.asarray(1 / (1 + np.exp(-logits)))

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> str:
        places = self._places[index]
        counts = ["" if place == 0 else str(place**2) for place in places[:NUM_COUNTS]]
        texts = [f"{place:08x}" for place in places[NUM_COUNTS:]]
        return "\t".join([str(int(self.clicks[index])), *counts, *texts])


def read(split: str, data_dir: str) -> tf.data.Dataset:
    """Returns the lines of `train.txt` in order: nine of ten for training, one for validation.

    Raises:
      DataError: the file is not in `data_dir`.
    """
    path = Path(data_dir) / FILE
    if not path.is_file():
        raise DataError(
            f"There is no {path}. Get the {FILE} of Criteo's Display Advertising Challenge "
            "(45.8 million lines) and give its directory as --data_dir, or use --config=made_up, "
            "which needs no download."
        )
    held_out = split == "validation"
    lines = tf.data.TextLineDataset(str(path)).enumerate()
    kept = lines.filter(lambda number, line: (number % VALIDATION_EVERY == 0) == held_out)
    return kept.map(lambda number, line: line)


def parse(line: tf.Tensor, buckets: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the numbers of a line's 39 values, int64 [39] below `buckets`, and its label [1].

    Counts become classes, as in the winners' solution: the square of the logarithm, rounded down.
    """
    parts = tf.strings.split(line, "\t")
    parts = tf.ensure_shape(parts, [1 + NUM_FIELDS])
    counts, texts = parts[1 : 1 + NUM_COUNTS], parts[1 + NUM_COUNTS :]
    numbers = tf.strings.to_number(tf.where(counts == "", "0", counts))
    classes = tf.where(numbers > 2, tf.floor(tf.math.log(tf.maximum(numbers, 1.0)) ** 2), numbers)
    classes = tf.strings.as_string(tf.cast(classes, tf.int64))
    values = tf.concat([tf.where(counts == "", "", classes), texts], 0)
    # The field is a part of the value, because a text means something else in another field.
    ids = tf.strings.to_hash_bucket_fast(tf.strings.join([_FIELDS, values], ":"), buckets)
    return ids, tf.strings.to_number(parts[:1])


_FIELDS: Sequence[str] = [f"{field}" for field in range(NUM_FIELDS)]
