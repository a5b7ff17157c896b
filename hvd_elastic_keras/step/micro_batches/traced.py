"""How a micro-batch is traced, what has been seen meanwhile, and what it gives."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import tensorflow as tf

Tensors = list[tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Notes:
    """What has been seen while a micro-batch was traced.

    Attributes:
      across: what is known to look across the examples, see `across_examples.py`.
      is_random: whether it draws random numbers.
      stateful_draws: names of stateful random operations, which had to be replaced.
      terms: names of the terms of the loss.
      reads_after_apply: whether something follows from weights as they are after the optimizer has
        been applied. There they are still those before.
      averaged_logs: names in the logs whose values are averaged over micro-batches.
      draws_in_python: whether NumPy's or Python's own generator has moved on.
      dropped: paths of variables that are assigned and would not change.
    """

    across: frozenset[str] = frozenset()
    is_random: bool = False
    stateful_draws: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()
    reads_after_apply: bool = False
    averaged_logs: tuple[str, ...] = ()
    draws_in_python: bool = False
    dropped: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Tracing:
    """How a micro-batch is computed.

    Attributes:
      seed: stateful random operations follow from it.
      sums: numbers of the terms of the loss that are sums over the examples.
      neutral: whether what is known to look across examples, and all that is random, is left out,
        for a trial.
      with_xla: whether XLA compiles it, if the model wants that. It does so anew for each size.
      together: whether several micro-batches may be computed in one pass.
    """

    seed: int = 0
    sums: frozenset[int] = frozenset()
    neutral: bool = False
    with_xla: bool = True
    together: bool = False


@dataclasses.dataclass(frozen=True)
class Accumulated:
    """Sums over micro-batches.

    Attributes:
      gradients: of the variables that have one, weighted by examples.
      staged: shape [n], everything else that adds up, one after the other.
      whole: values of metrics that do not add up, after all micro-batches of the step.
    """

    gradients: Tensors
    staged: tf.Tensor
    whole: Tensors

    @property
    def tensors(self) -> Tensors:
        """All of them."""
        return [*self.gradients, self.staged, *self.whole]

    def copy(self) -> Accumulated:
        """The same values, in tensors that are made here."""
        gradients, whole = ([tf.identity(t) for t in ts] for ts in (self.gradients, self.whole))
        return Accumulated(gradients, tf.identity(self.staged), whole)


@dataclasses.dataclass(frozen=True)
class Trial:
    """What a micro-batch would add, and shape [terms], the terms of its loss, not weighted."""

    added: Accumulated
    terms: npt.NDArray[np.float32]
