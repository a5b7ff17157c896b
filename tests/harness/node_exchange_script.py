"""Workers that exchange nodes of trees with uneven shares, in one collective and in slices.

    node_exchange_script.py OUTPUT SHARES

SHARES is JSON: for each tree, its leaves by rank. Each worker leaves its results in
`OUTPUT/<rank>.npz`. It maps "way/size/number" to the sum, followed by the sum of the tails.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import hvd_elastic_keras.horovod as hvd
from hvd_elastic_keras.step import deterministic_step
from hvd_elastic_keras.step.tree_sum import Nodes, TreeSum, loop

SIZES = (2, 7)
WAYS = {"whole": deterministic_step.WHOLE_BYTES, "slices": 0}


def leaves_of(size: int, count: int) -> Any:
    """Returns float32 numbers of shape [count, size] whose sum depends on the order of addition."""
    random = np.random.default_rng(size)
    scale = 10.0 ** random.integers(-6, 6, (count, size))
    return (random.normal(size=(count, size)) * scale).astype(np.float32)


def exchange_of(size: int, name: str) -> Any:
    """Returns a function that exchanges nodes as a step does, for vectors of one size."""

    def exchanged(leaves: tf.Tensor, first: tf.Tensor, workers: tf.Tensor) -> tf.Tensor:
        def add(i: Any, array: Any) -> Any:
            tree = TreeSum(size, tf.float32, first, array)
            tree.add(leaves[i], tf.constant(0, tf.int64), first + tf.cast(i, tf.int64))
            return [i + 1, tree.array]

        tree = TreeSum(size, tf.float32, first)
        (array,) = loop(tf.shape(leaves)[0], add, [tree.array])
        count = tf.shape(leaves, tf.int64)[0]
        nodes = Nodes.of_range(first, first + count)
        tail = tf.stack([tf.cast(count, tf.float32), 1.0])
        vectors = tree.with_array(array).vectors(nodes)
        found = deterministic_step.sum_over_workers(vectors, nodes, tail, workers, name)
        return tf.concat(found, 0)

    specs = [tf.TensorSpec([None, size]), tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int32)]
    return tf.function(exchanged, input_signature=specs, autograph=False)


def main(output: Path, trees: list[list[int]]) -> None:
    """Exchanges all trees with the other workers."""
    rank, found = hvd.rank(), {}
    for way, limit in WAYS.items():
        deterministic_step.WHOLE_BYTES = limit  # read when the graph is traced
        for size in SIZES:
            exchange = exchange_of(size, f"{way}.{size}")
            for number, shares in enumerate(trees):
                first = sum(shares[:rank])
                leaves = leaves_of(size, sum(shares))[first : first + shares[rank]]
                numbers = tf.constant(first, tf.int64), tf.constant(len(shares))
                found[f"{way}/{size}/{number}"] = exchange(leaves, *numbers).numpy()
    np.savez(output / f"{rank}.npz", **found)


if __name__ == "__main__":
    hvd.init()
    counter = tf.Variable(0.0)
    state = hvd.elastic.TensorFlowState([counter])
    hvd.elastic.run(lambda _: main(Path(sys.argv[1]), json.loads(sys.argv[2])))(state)
