"""A copy of an elastic state at its last commit."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.keras_internals.model_variables import OPTIMIZER, Groups
from hvd_elastic_keras.state.packing import Tree

HOST_MEMORY = "CPU:0"


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A copy of a state in host memory.

    Attributes:
      states: the states of the parts that a restore brings back.
      groups, tensors: variables and their values, in the same order.
    """

    states: dict[str, Tree]
    groups: Groups
    tensors: tuple[tf.Tensor, ...]

    @classmethod
    def of(cls, states: dict[str, Tree], groups: Groups) -> Snapshot:
        """Returns a snapshot with copies of the present values."""
        with tf.device(HOST_MEMORY):
            tensors = tuple(tf.identity(v) for group in groups.values() for v in group)
        return cls(states, groups, tensors)

    @property
    def variables(self) -> list[tf.Variable]:
        """The variables of all groups."""
        return [v for group in self.groups.values() for v in group]

    def check_complete(self, now: Groups) -> None:
        """Refuses to restore if an optimizer has made variables since this snapshot.

        After a failed step, workers may hold different values of these variables. The values from
        before the step are not known.

        Raises:
          ConfigurationError: an optimizer has made such variables.
        """
        known = {id(v) for v in self.variables}
        late = [v.name for v in now[OPTIMIZER] if id(v) not in known]
        if late:
            raise ConfigurationError(
                "A failed step cannot be taken back, since an optimizer has made variables after "
                f"the last commit: {', '.join(late[:5])}. Make and build all optimizers before the "
                "elastic state is made, and keep them in attributes of the model."
            )
