"""Texts to classify: IMDB from tensorflow-datasets, or docstrings of the standard library."""

from __future__ import annotations

from typing import Any

import ml_collections
import numpy as np
import tensorflow as tf

from hvd_elastic_keras import TfdsSource
from model_zoo import python_texts


def dataset(split: str, config: ml_collections.ConfigDict, data_dir: str) -> Any:
    """Returns words as numbers, int64 [config.num_words], and class numbers."""
    if config.dataset == "docstrings":
        texts, labels = python_texts.docstrings(split)
        return to_numbers(tf.constant(texts), config).numpy(), np.array(labels)
    source = TfdsSource(
        config.dataset,
        config.validation_split if split == "validation" else config.train_split,
        data_dir,
    )

    def prepare(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        text, label = source.decode_supervised(record)
        return to_numbers(text[tf.newaxis], config)[0], label

    return source, prepare


def to_numbers(texts: tf.Tensor, config: ml_collections.ConfigDict) -> tf.Tensor:
    """Turns texts [n] into numbers of their first words, int64 [n, config.num_words]; 0 is padding.

    A word's number is a hash from 1 to `config.vocabulary_size` - 1. Therefore no vocabulary has to
    be made from the data first.
    """
    plain = tf.strings.regex_replace(tf.strings.lower(texts), "[^a-z0-9']+", " ")
    words = tf.strings.split(plain)[:, : config.num_words]
    numbers = tf.strings.to_hash_bucket_fast(words, config.vocabulary_size - 1) + 1
    return numbers.to_tensor(shape=[None, config.num_words])
