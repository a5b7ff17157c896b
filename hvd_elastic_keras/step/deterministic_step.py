"""The atomic step with sums whose bits do not depend on who computes which micro-batch."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_elastic_keras.step.atomic import AtomicStep
from hvd_elastic_keras.step.micro_batches.traced import Accumulated, Tensors
from hvd_elastic_keras.step.node_exchange import sum_over_workers
from hvd_elastic_keras.step.share_tensors import ShareTensors
from hvd_elastic_keras.step.tree_sum import Nodes, TreeSum, loop


class DeterministicStep(AtomicStep):
    """An `AtomicStep` that adds up by the binary tree of `tree_sum.py`.

    What a micro-batch adds is one vector: gradients, then everything staged. In place of the
    allreduce workers exchange nodes of the tree with their places in it, and count and flags; who
    does the additions that are left is up to `node_exchange.py`.
    """

    def _sum_of_all(self, part: ShareTensors, stop: tf.Tensor) -> tuple[Accumulated, tf.Tensor]:
        first = part.first_index
        last = first + tf.cast(part.count, tf.int64)
        form = self._form(part)
        sizes = [int(t.shape.num_elements()) for t in form]
        tree, whole = self._own_nodes(part, TreeSum(sum(sizes), form[0].dtype, first), first)
        tail = self._tail([tree.array.flow, *whole], part, stop)
        vector, tail = tf.cond(
            self._world.has_others.read_value(),
            lambda: self._gathered(tree, first, last, tail),
            lambda: [tree.total(last), tail],
        )
        flat = tf.split(vector, sizes)
        parts = [tf.reshape(t, like.shape) for t, like in zip(flat, form, strict=True)]
        return self.micro_batch.accumulated([*parts, *whole]), tail

    def _form(self, part: ShareTensors) -> list[tf.TensorSpec]:
        """What a micro-batch adds."""
        if not self.micro_batch.summed:  # run eagerly, and nothing has run yet
            self._results(0, part, self.micro_batch.whole_of(()))
        return self.micro_batch.summed

    def _own_nodes(
        self, part: ShareTensors, tree: TreeSum, first: tf.Tensor
    ) -> tuple[TreeSum, Tensors]:
        """The tree over this worker's micro-batches, and the metrics that do not add up."""

        def body(i: Any, array: Any, *whole: tf.Tensor) -> list[Any]:
            results = self._results(i, part, list(whole))
            split = len(results) - len(whole)
            grown = tree.with_array(array)
            vector = tf.concat([tf.reshape(t, [-1]) for t in results[:split]], 0)
            grown.add(vector, tf.constant(0, tf.int64), first + tf.cast(i, tf.int64))
            return [i + 1, grown.array, *results[split:]]

        start = self.micro_batch.whole_of(())
        array, *whole = loop(part.count, body, [tree.array, *start])
        return tree.with_array(array), whole

    def _gathered(
        self, tree: TreeSum, first: tf.Tensor, last: tf.Tensor, tail: tf.Tensor
    ) -> Tensors:
        """The sums over the nodes and the tails of all workers."""
        name = f"{self._name}.nodes"
        if not self._shared:  # everybody has all nodes
            tails = hvd.allgather(tail[None], name=name, ignore_name_scope=True)
            return [tree.total(last), tf.reduce_sum(tails, 0)]
        nodes = Nodes.of_range(first, last)
        vectors = tree.vectors(nodes)
        return sum_over_workers(vectors, nodes, tail, self._world.num_workers.read_value(), name)
