"""Click logs: the file of Criteo's challenge from `--data_dir`, or made-up lines."""

from __future__ import annotations

from typing import Any

import ml_collections
import tensorflow as tf

from model_zoo.deepfm import criteo


def dataset(split: str, config: ml_collections.ConfigDict, data_dir: str) -> Any:
    """Returns lines, and a function from a line to the numbers of its 39 values and its label."""
    lines: Any
    if config.dataset == "criteo":
        lines = criteo.read(split, data_dir)
        if split == "train":
            lines = lines.shuffle(config.shuffled_lines, seed=0, reshuffle_each_iteration=False)
    else:
        count = config.num_train if split == "train" else config.num_validation
        lines = criteo.MadeUpLines(split, count)

    def parse(line: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return criteo.parse(line, config.buckets)

    return lines, parse
