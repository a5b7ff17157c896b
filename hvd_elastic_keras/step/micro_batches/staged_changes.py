"""What a step would change, staged so that nothing is assigned before all workers have it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.keras_internals.apply_recorder import ApplyRecorder
from hvd_elastic_keras.keras_internals.model_variables import KerasVariable, unwrapped

BITS_PER_PIECE, NUM_PIECES = 16, 4
"""How states of seed generators, 64 bits, travel among float32 numbers."""


class KeptAssignments(keras.StatelessScope):  # type: ignore[misc]
    """Keeps what a step assigns, in the place of the variables.

    A variable that is read after it has been assigned stands for itself in TensorFlow: no gradient
    goes on into what it was computed from. In Keras's own scope one would.

    Args:
      assignable: what may be assigned takes effect when all workers have computed their part.
      present: values of variables that have others meanwhile.
    """

    def __init__(
        self,
        assignable: Iterable[KerasVariable],
        present: Sequence[tuple[KerasVariable, tf.Tensor]] = (),
    ) -> None:
        super().__init__(state_mapping=present, collect_losses=True)
        self.dropped: dict[str, None] = {}
        """Paths of the variables that are assigned and would not change."""
        self._assignable = {id(v) for v in assignable}
        self._graph = tf.compat.v1.get_default_graph()

    def add_update(self, update: tuple[KerasVariable, Any]) -> None:
        """Keeps what is assigned to a variable.

        Raises:
          ConfigurationError: it is assigned in one of several branches.
        """
        variable, value = update
        if tf.is_symbolic_tensor(value) and value.graph is not self._graph:
            raise ConfigurationError(
                f"The step assigns to {variable.path} within tf.cond, tf.while_loop or the like, "
                "expected an assignment in each step. Choose the value in place of the "
                "assignment: variable.assign(tf.where(condition, new, variable))."
            )
        if id(variable) not in self._assignable:
            self.dropped[variable.path] = None
        super().add_update((variable, value if variable.trainable else tf.stop_gradient(value)))


class Changes:
    """What a step in a `keras.StatelessScope` would have changed."""

    def __init__(self, scope: keras.StatelessScope) -> None:
        self._scope = scope

    def value(self, variable: KerasVariable) -> tf.Tensor:
        """The value a variable would have now."""
        new = self._scope.get_current_value(variable)
        return tf.identity(variable.value) if new is None else unwrapped(new)

    def of(self, variable: KerasVariable) -> tf.Tensor:
        """The difference to the value it has, float32."""
        new = self._scope.get_current_value(variable)
        if new is None:
            return tf.zeros(variable.shape, tf.float32)
        return difference(new, variable.value)


def difference(new: Any, old: Any) -> tf.Tensor:
    """Of two values of a variable, float32."""
    # Large counters would lose their last digits in float32, and bool has no difference.
    wide = tf.float32 if old.dtype.is_floating else tf.int64
    wide = tf.float64 if old.dtype == tf.float64 else wide
    return tf.cast(tf.cast(new, wide) - tf.cast(old, wide), tf.float32)


def move(variable: tf.Variable, by: tf.Tensor) -> None:
    """Adds what `difference` gave, or a sum or average of such values."""
    if variable.dtype.is_floating:
        variable.assign_add(tf.cast(by, variable.dtype))
    else:
        moved = tf.cast(variable, tf.int64) + tf.cast(tf.round(by), tf.int64)
        variable.assign(tf.cast(moved, variable.dtype))


def state_of_python_generators() -> tuple[Any, ...]:
    """Of NumPy's and Python's own generator, which no step can give to other workers."""
    _, keys, *rest = np.random.get_state(legacy=True)
    return np.asarray(keys).tobytes(), rest, random.getstate()


def pieces_of(value: tf.Tensor) -> tf.Tensor:
    """Whole numbers as float32, in pieces small enough to be exact; shape [NUM_PIECES, …]."""
    wide = tf.cast(value, tf.int64)
    shifts = [BITS_PER_PIECE * i for i in range(NUM_PIECES)]
    mask = 2**BITS_PER_PIECE - 1
    return tf.stack(
        [
            tf.cast(tf.bitwise.bitwise_and(tf.bitwise.right_shift(wide, s), mask), tf.float32)
            for s in shifts
        ]
    )


def from_pieces(pieces: tf.Tensor, like: tf.Variable) -> tf.Tensor:
    """What `pieces_of` was given."""
    split = tf.cast(tf.reshape(pieces, [NUM_PIECES, *like.shape]), tf.int64)
    value = tf.zeros(like.shape, tf.int64)
    for i in range(NUM_PIECES):
        value += tf.bitwise.left_shift(split[i], BITS_PER_PIECE * i)
    return tf.cast(value, like.dtype)


def moved_in(
    scope: keras.StatelessScope, variables: Iterable[KerasVariable]
) -> list[KerasVariable]:
    """Those that a step has moved: frozen weights, of which there may be many, are not."""
    return [v for v in variables if scope.get_current_value(v) is not None]


def put_back(
    variables: Iterable[tf.Variable], before: Sequence[tf.Tensor], after: Sequence[tf.Tensor]
) -> None:
    """Takes back what a step has assigned past Keras: it counts only once all workers have it."""
    with tf.control_dependencies([tf.group(*after)]):
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)


def is_assigned(
    scope: keras.StatelessScope, variable: KerasVariable, recorder: ApplyRecorder
) -> bool:
    """Whether the step itself assigned a weight, without any optimizer."""
    new = scope.get_current_value(variable)
    unchanged = new is None or new is variable.value
    return not unchanged and not recorder.stands_for(variable, new)
