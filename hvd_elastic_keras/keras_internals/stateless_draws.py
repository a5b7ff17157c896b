"""Draws the numbers of TensorFlow's stateful random operations from seeds, without a state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import tensorflow as tf

ARGUMENTS = ("seed", "seed2", "dtype", "output_dtype")
"""Attributes of a stateful operation that are arguments here."""


class NextSeed(Protocol):
    """Gives each operation a seed of its own."""

    def __call__(self, name: str, seed: int, seed2: int) -> Any:
        """Returns a seed, shape [2], int64.

        Args:
          name: TensorFlow's name of the operation, for messages.
          seed, seed2: the seeds that the user gave; 0 without one.
        """


def mixed(*numbers: int) -> int:
    """Returns a number below 2**62 that follows from others and from their order."""
    total = 0
    for number in numbers:
        total = (total * 1_000_003 + (number or 0)) % (2**62)
    return total


class StatelessDraws:
    """Stateless operations that take the arguments of the stateful ones in `gen_random_ops`."""

    METHODS: ClassVar[Mapping[str, str]] = {
        "RandomUniform": "random_uniform",
        "RandomUniformInt": "random_uniform_int",
        "RandomStandardNormal": "random_standard_normal",
        "TruncatedNormal": "truncated_normal",
        "RandomShuffle": "random_shuffle",
        "Multinomial": "multinomial",
        "RandomGamma": "random_gamma",
        "RandomPoissonV2": "random_poisson_v2",
    }
    """Names in `gen_random_ops`, which are the names of the methods, by the types of operations."""

    def __init__(self, next_seed: NextSeed) -> None:
        self._next_seed = next_seed

    def again(self, op: Any, inputs: list[Any]) -> Any:
        """Draws the numbers of a traced operation, for these inputs."""
        given = {a.name for a in op.op_def.attr}.intersection(ARGUMENTS)
        draw = getattr(self, self.METHODS[op.type])
        return draw(*inputs, **{name: op.get_attr(name) for name in given})

    def random_uniform(self, shape: Any, dtype: Any, seed: int = 0, seed2: int = 0) -> Any:
        """Draws from [0, 1)."""
        found = self._next_seed("tf.random.uniform", seed, seed2)
        return tf.random.stateless_uniform(shape, found, dtype=dtype)

    def random_uniform_int(
        self, shape: Any, minval: Any, maxval: Any, seed: int = 0, seed2: int = 0
    ) -> Any:
        """Draws whole numbers from [minval, maxval)."""
        found = self._next_seed("tf.random.uniform", seed, seed2)
        dtype = tf.convert_to_tensor(minval).dtype
        return tf.random.stateless_uniform(shape, found, minval, maxval, dtype)

    def random_standard_normal(self, shape: Any, dtype: Any, seed: int = 0, seed2: int = 0) -> Any:
        """Draws from the normal distribution with mean 0 and standard deviation 1."""
        found = self._next_seed("tf.random.normal", seed, seed2)
        return tf.random.stateless_normal(shape, found, dtype=dtype)

    def truncated_normal(self, shape: Any, dtype: Any, seed: int = 0, seed2: int = 0) -> Any:
        """Draws from the normal distribution, within two standard deviations."""
        found = self._next_seed("tf.random.truncated_normal", seed, seed2)
        return tf.random.stateless_truncated_normal(shape, found, dtype=dtype)

    def random_shuffle(self, value: Any, seed: int = 0, seed2: int = 0) -> Any:
        """Returns the entries along axis 0 in a random order."""
        found = self._next_seed("tf.random.shuffle", seed, seed2)
        keys = tf.random.stateless_uniform(tf.shape(value)[:1], found)
        return tf.gather(value, tf.argsort(keys))

    def multinomial(
        self,
        logits: Any,
        num_samples: Any,
        seed: int = 0,
        seed2: int = 0,
        output_dtype: Any = tf.int64,
    ) -> Any:
        """Draws classes with these unnormalised log probabilities."""
        found = self._next_seed("tf.random.categorical", seed, seed2)
        return tf.random.stateless_categorical(logits, num_samples, found, output_dtype)

    def random_gamma(self, shape: Any, alpha: Any, seed: int = 0, seed2: int = 0) -> Any:
        """Draws from the gamma distribution, `shape` numbers for each `alpha`."""
        found = self._next_seed("tf.random.gamma", seed, seed2)
        alpha = tf.convert_to_tensor(alpha)
        return tf.random.stateless_gamma(_for_each(alpha, shape), found, alpha, dtype=alpha.dtype)

    def random_poisson_v2(
        self, shape: Any, rate: Any, seed: int = 0, seed2: int = 0, dtype: Any = tf.int64
    ) -> Any:
        """Draws from the Poisson distribution, `shape` numbers for each `rate`."""
        found = self._next_seed("tf.random.poisson", seed, seed2)
        rate = tf.convert_to_tensor(rate)
        return tf.random.stateless_poisson(_for_each(rate, shape), found, rate, dtype)


def _for_each(parameter: Any, shape: Any) -> Any:
    """Returns the shape of the result if `shape` is drawn for each element of a parameter."""
    return tf.concat([tf.cast(shape, tf.int32), tf.shape(parameter)], 0)
