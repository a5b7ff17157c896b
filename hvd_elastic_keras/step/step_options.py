"""What a step does beyond its work."""

from __future__ import annotations

import dataclasses

from hvd_elastic_keras.common.options import MICRO_BATCH, NO_COMPRESSION


@dataclasses.dataclass(frozen=True)
class StepOptions:
    """What a step does beyond its work.

    Attributes:
      audited: whether the workers agree on which examples they have used.
      measured_workers: so many workers, at most, tell each other their speed; 0 turns it off.
      scales_rate: whether the learning rate is multiplied by that of `World`.
      skips_nonfinite: whether nothing is assigned if the sum of the gradients, or of what they and
        the losses change, holds a number that is not finite.
      together: so many micro-batches, at most, are computed in one pass; None: any number.
      timed: whether `World.clock` hears when the parts of some steps are done.
      compression: how gradients travel between workers; see `partition/`.
      batch_norm: what it normalises over; see `RunOptions`.
    """

    audited: bool = False
    measured_workers: int = 0
    scales_rate: bool = False
    skips_nonfinite: bool = False
    together: int | None = 1
    timed: bool = False
    compression: str = NO_COMPRESSION
    batch_norm: str = MICRO_BATCH


PLAIN = StepOptions()
