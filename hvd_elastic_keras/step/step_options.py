"""The optional features of a step."""

from __future__ import annotations

import dataclasses

from hvd_elastic_keras.settings.options import AUTO, NO_COMPRESSION


@dataclasses.dataclass(frozen=True)
class StepOptions:
    """Optional features of a step.

    Attributes:
      audited: whether the workers agree on which examples they have used.
      measured_workers: the most workers that tell each other their speed; 0 turns it off.
      scales_rate: whether the learning rate is multiplied by `World.learning_rate_scale`.
      skips_nonfinite: whether to assign nothing if a result of the step, or a new value of a
        variable, is not finite.
      together: the most micro-batches that are computed in one pass; None: any number.
      timed: whether `World.clock` times the parts of some steps.
      compression: how gradients travel between workers; see `partition/`.
      batch_norm: what batch normalisation normalises over; see `RunOptions`.
    """

    audited: bool = False
    measured_workers: int = 0
    scales_rate: bool = False
    skips_nonfinite: bool = False
    together: int | None = 1
    timed: bool = False
    compression: str = NO_COMPRESSION
    batch_norm: str = AUTO


PLAIN = StepOptions()
