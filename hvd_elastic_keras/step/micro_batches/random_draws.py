"""Random numbers of a micro-batch: its rows of what the whole batch of a step would draw.

Plain `fit` draws the numbers of a layer, say a dropout mask, for a whole batch at once. A
micro-batch that takes examples [low, high) of that batch takes rows [low, high) of that draw, so
that neither the cut nor the workers change a single number. Random bits come from a counter-based
generator (Philox; Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), of which
any part of a sequence can be computed without the part before it: this costs nothing.

* Stateless operations, which all of Keras's randomness comes down to, are given the counter at
  which their rows begin. Where that is not known (truncated normal, gamma, categorical, …) the
  whole batch is drawn and cut.
* What does not depend on the number of examples, one brightness for a whole batch, say, is the
  same in all micro-batches, as it is in plain `fit`.
* Stateful operations (`tf.random.normal`, `tf.nn.dropout`, …) follow from a state inside of the
  process that no other worker has. They become stateless ones, whose seed follows from the step:
  reproducible, but with other numbers than in plain `fit`.

Operations are replaced where TensorFlow's Python code makes them, during the trace of a step and in
its thread only. `unknown_draws` finds what was made elsewhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.keras_internals.replaced import replaced
from hvd_elastic_keras.keras_internals.tensorflow_names import (
    gen_stateless_random_ops,
    gen_stateless_random_ops_v2,
)
from hvd_elastic_keras.step.micro_batches.rows import Rows
from hvd_elastic_keras.step.micro_batches.stateful_draws import SCOPE, StatefulDraws, named

BITS_PER_BLOCK = 128
STATEFUL = frozenset(
    {
        *("RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal"),
        *("ParameterizedTruncatedNormal", "RandomShuffle", "Multinomial", "RandomGamma"),
        *("RandomPoisson", "RandomPoissonV2", "StatefulRandomBinomial", "RngReadAndSkip"),
        *("StatefulStandardNormalV2", "StatefulTruncatedNormal", "StatefulUniform", "RngSkip"),
        *("StatefulUniformInt", "StatefulUniformFullInt", "NonDeterministicInts"),
    }
)
STATELESS = frozenset(
    {
        *("StatelessRandomUniformV2", "StatelessRandomNormalV2", "StatelessTruncatedNormalV2"),
        *("StatelessRandomUniformIntV2", "StatelessRandomGammaV3", "StatelessMultinomial"),
        *("StatelessRandomBinomial", "StatelessRandomPoisson"),
        *("StatelessRandomUniform", "StatelessRandomNormal", "StatelessTruncatedNormal"),
        *("StatelessRandomUniformInt", "StatelessParameterizedTruncatedNormal"),
    }
)
Operation = Callable[..., Any]


class RandomDraws:
    """The random operations of one micro-batch.

    Args:
      rows: of the micro-batch.
      seed: stateful operations follow from it.
      static_shapes: whether sizes of tensors must be known when the graph is compiled, as XLA
        wants it. What would need a draw for the whole batch is then drawn for the micro-batch.
      without: whether random operations give the middle of their range in place of anything random.
    """

    def __init__(
        self, rows: Rows, seed: int, *, static_shapes: bool = False, without: bool = False
    ) -> None:
        self._rows = rows
        self._static_shapes = static_shapes
        self._without = without
        self._stateful = StatefulDraws(rows.step, seed)
        self.are_random = False
        """Whether anything has been drawn."""

    @contextlib.contextmanager
    def replaced(self) -> Iterator[None]:
        """Draws rows for a while."""
        v2, v1 = gen_stateless_random_ops_v2, gen_stateless_random_ops
        places: list[tuple[Any, str, Operation]] = [
            (v2, "stateless_random_uniform_v2", self._block_draw(0.5)),
            (v2, "stateless_random_normal_v2", self._block_draw(0.0)),
            (v2, "stateless_random_uniform_int_v2", self._block_draw(None)),
            (v2, "stateless_truncated_normal_v2", self._whole_draw),
            (v2, "stateless_random_gamma_v3", self._gamma),
            (v1, "stateless_random_binomial", self._binomial),
            (v1, "stateless_random_poisson", self._poisson),
            (v1, "stateless_multinomial", self._multinomial),
        ]
        with contextlib.ExitStack() as stack:
            for module, name, draw in places:
                stack.enter_context(replaced(module, name, self._noted(named(draw))))
            stack.enter_context(self._stateful.replaced())
            yield

    @property
    def stateful(self) -> set[str]:
        """TensorFlow's names of stateful operations that have been replaced."""
        return self._stateful.names

    def _noted(self, draw: Operation) -> Operation:
        def noted(*args: Any, **kwargs: Any) -> Any:
            self.are_random = True
            return draw(*args, **kwargs)

        return noted

    # --- stateless operations ------------------------------------------------------------

    def _block_draw(self, middle: float | None) -> Operation:
        """Of distributions that use up a fixed number of bits for each number."""

        def draw(
            original: Operation, shape: Any, key: Any, counter: Any, *a: Any, **kw: Any
        ) -> Any:
            def numbers(shape: Any, counter: Any) -> Any:
                return original(shape, key, counter, *a, **kw)

            plain = numbers(shape, counter)
            if self._without:
                return (
                    tf.zeros_like(plain)
                    if middle is None
                    else tf.fill(tf.shape(plain), tf.cast(middle, plain.dtype))
                )
            axis = self._axis(plain)
            if axis is None:
                return plain
            if axis != 0:
                return self._cut_of_whole(plain, shape, axis, counter, numbers)
            return self._from_counter(plain, shape, counter, numbers)

        return draw

    def _from_counter(
        self, plain: tf.Tensor, shape: Any, counter: Any, numbers: Operation
    ) -> tf.Tensor:
        """Rows of axis 0, computed from the counter at which they begin.

        Args:
          plain: what would have been drawn; only for its form, so that it is not computed.
          shape: of it.
        """
        shape = tf.cast(shape, tf.int64)
        per_row = tf.reduce_prod(shape[1:])
        first, fits = self._first_row(shape[0])
        start = first * per_row
        per_block = BITS_PER_BLOCK // max(32, 8 * plain.dtype.size)
        block, rest = start // per_block, start % per_block
        count = tf.cast(tf.reduce_prod(shape), tf.int32)
        moved = self._apart(counter + tf.cast(tf.stack([block, 0]), counter.dtype), fits)
        flat = numbers([count + per_block - 1], moved)
        begin = tf.cast(rest, tf.int32)
        if self._static_shapes:  # XLA would compile a slice anew for each place where it begins
            drawn = tf.gather(flat, begin + tf.range(count))
        else:
            drawn = tf.slice(flat, [begin], [count])
        return tf.ensure_shape(tf.reshape(drawn, shape), plain.shape)

    def _whole_draw(
        self, original: Operation, shape: Any, key: Any, counter: Any, *a: Any, **kw: Any
    ) -> Any:
        """Of distributions that use up an unknown number of bits."""

        def numbers(shape: Any, counter: Any) -> Any:
            return original(shape, key, counter, *a, **kw)

        plain = numbers(shape, counter)
        if self._without:
            return tf.zeros_like(plain)
        axis = self._axis(plain)
        if axis is None:
            return plain
        return self._cut_of_whole(plain, shape, axis, counter, numbers)

    def _cut_of_whole(
        self, plain: tf.Tensor, shape: Any, axis: int, counter: Any, numbers: Operation
    ) -> tf.Tensor:
        """Rows of a draw for the whole batch."""
        shape = tf.cast(shape, tf.int32)
        if self._static_shapes:
            return numbers(shape, self._apart(counter, tf.constant(False)))
        first, fits = self._first_row(tf.cast(shape[axis], tf.int64))
        all_rows = tf.cast(self._rows.total, tf.int32) * (
            shape[axis] // tf.maximum(tf.cast(self._rows.size, tf.int32), 1)
        )
        length = tf.where(fits, all_rows, shape[axis])
        shape_of_whole = tf.tensor_scatter_nd_update(shape, [[axis]], [length])
        whole = numbers(shape_of_whole, self._apart(counter, fits))
        begin = tf.one_hot(axis, plain.shape.rank, tf.cast(first, tf.int32), 0)
        return tf.ensure_shape(tf.slice(whole, begin, shape), plain.shape)

    # --- those whose parameters may differ from example to example -------------------------

    def _gamma(
        self, original: Operation, shape: Any, key: Any, counter: Any, *, alg: Any, alpha: Any
    ) -> Any:
        if self._static_shapes:
            return original(shape, key, self._apart(counter, tf.constant(False)), alg, alpha)
        plain = original(shape, key, counter, alg, alpha)
        return self._with_parameters(
            plain, [alpha], [1.0], lambda s, ps: original(s, key, counter, alg, ps[0])
        )

    def _binomial(
        self, original: Operation, shape: Any, seed: Any, *, counts: Any, probs: Any, dtype: Any
    ) -> Any:
        seed = self._apart_in_static_shapes(seed)
        plain = original(shape, seed, counts, probs, dtype)
        return self._with_parameters(
            plain, [counts, probs], [1.0, 0.5], lambda s, ps: original(s, seed, *ps, dtype)
        )

    def _poisson(self, original: Operation, shape: Any, seed: Any, lam: Any, dtype: Any) -> Any:
        seed = self._apart_in_static_shapes(seed)
        plain = original(shape, seed, lam, dtype)
        return self._with_parameters(
            plain, [lam], [1.0], lambda s, ps: original(s, seed, ps[0], dtype)
        )

    def _multinomial(
        self,
        original: Operation,
        logits: Any,
        num_samples: Any,
        seed: Any,
        output_dtype: Any = tf.int64,
    ) -> Any:
        seed = self._apart_in_static_shapes(seed)
        plain = original(logits, num_samples, seed, output_dtype)
        if self._axis(plain) is None or self._static_shapes:
            return plain
        padded = self._padded(tf.convert_to_tensor(logits), 0.0)
        return self._own_rows(plain, original(padded, num_samples, seed, output_dtype))

    def _with_parameters(
        self,
        plain: tf.Tensor,
        parameters: list[Any],
        neutral: list[float],
        draw: Callable[[Any, list[tf.Tensor]], Any],
    ) -> tf.Tensor:
        if self._axis(plain) is None or self._static_shapes:
            return plain
        padded = []
        for parameter, value in zip(parameters, neutral, strict=True):
            tensor = tf.convert_to_tensor(parameter)
            padded.append(self._padded(tf.broadcast_to(tensor, tf.shape(plain)), value))
        return self._own_rows(plain, draw(tf.shape(padded[0]), padded))

    def _padded(self, tensor: tf.Tensor, value: float) -> tf.Tensor:
        """A tensor of rows of this micro-batch at its place among those of the whole batch."""
        rows = tf.shape(tensor, out_type=tf.int64)[0]
        first, fits = self._first_row(rows)
        all_rows = self._rows.total * (rows // tf.maximum(self._rows.size, 1))
        before = tf.where(fits, first, tf.zeros_like(first))
        after = tf.where(fits, all_rows - first - rows, tf.zeros_like(first))
        rest = tf.zeros([tensor.shape.rank - 1, 2], tf.int64)
        paddings = tf.concat([[tf.stack([before, after])], rest], 0)
        return tf.pad(tensor, paddings, constant_values=tf.cast(value, tensor.dtype))

    def _own_rows(self, plain: tf.Tensor, whole: tf.Tensor) -> tf.Tensor:
        rows = tf.shape(plain, out_type=tf.int64)[0]
        first, fits = self._first_row(rows)
        start = tf.where(fits, first, tf.zeros_like(first))
        return tf.ensure_shape(whole[start : start + rows], plain.shape)

    # --- where the rows are --------------------------------------------------------------

    def _axis(self, plain: tf.Tensor) -> int | None:
        """The axis of a draw along which the examples lie; None if there is none.

        In a graph it is the one whose length is not known when the graph is made.
        """
        if tf.executing_eagerly():
            same = plain.shape.rank and int(plain.shape[0]) == int(self._rows.size)
            return 0 if same and self._rows.size != self._rows.total else None
        unknown = [i for i, n in enumerate(plain.shape) if n is None]
        return unknown[0] if unknown else None

    def _first_row(self, length: Any) -> tuple[Any, Any]:
        """Where the rows begin in a draw for the whole batch, and whether there is one.

        An axis may have several rows for each example, those of the first example first.
        """
        size = tf.maximum(tf.cast(self._rows.size, tf.int64), 1)
        per_example = length // size
        fits = tf.equal(per_example * size, length)
        first = tf.cast(self._rows.low, tf.int64) * per_example
        return tf.where(fits, first, tf.zeros_like(first)), fits

    def _apart(self, counter: Any, fits: Any) -> Any:
        """Another sequence for each micro-batch where rows do not belong to examples."""
        apart = tf.where(fits, tf.constant(0, tf.int64), tf.cast(self._rows.index, tf.int64) + 1)
        return counter + tf.cast(tf.stack([tf.constant(0, tf.int64), apart]), counter.dtype)

    def _apart_in_static_shapes(self, seed: Any) -> Any:
        if not self._static_shapes:
            return seed
        seed = tf.convert_to_tensor(seed)
        return seed + tf.stack([tf.zeros([], seed.dtype), tf.cast(self._rows.index, seed.dtype)])


def unknown_draws(nodes: Iterable[Any]) -> dict[str, str]:
    """Those operations of a traced step that draw and were not made here: name and type."""
    return {
        node.name: node.op
        for node in nodes
        if node.op in STATEFUL or (node.op in STATELESS and SCOPE not in node.name)
    }
