"""The position in the training: which atomic step comes next."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

MOST_EVALUATION_STEPS = 2**24
"""Most steps of one evaluation. It keeps the step numbers of different evaluations apart."""


class Phase(str, enum.Enum):
    """Parts of the training, each a sequence of atomic steps."""

    TRAIN = "train"
    EVALUATE = "evaluate"
    INFER = "infer"
    """The one phase of a job that only evaluates or predicts."""
    FINISH = "finish"


@dataclasses.dataclass(frozen=True)
class Cursor:
    """A position between two atomic steps. The position and the seed determine the data order.

    Attributes:
      epoch: epoch of the next step, from 0.
      phase: whether the next step trains, evaluates, predicts, or ends the training.
      step: index of the next step within the phase of this epoch.
      global_step: optimizer steps finished since the beginning; in a job that does not train, all
        finished steps.
      progress: atomic steps of any phase finished since the beginning; orders states by age.
      worker_batches: worker batches that the steps of this epoch have taken, if the batch grows
        with the workers (`data/input/per_worker.py`); else 0.
    """

    epoch: int = 0
    phase: Phase = Phase.TRAIN
    step: int = 0
    global_step: int = 0
    progress: int = 0
    worker_batches: int = 0

    @property
    def number_of_step(self) -> int:
        """Number of the next step, unique among the steps of this phase in the whole training."""
        if self.phase is Phase.EVALUATE:
            return self.global_step * MOST_EVALUATION_STEPS + self.step
        return self.global_step

    def after_step(self, worker_batches: int = 0) -> Cursor:
        """Returns the position after the next step, which takes `worker_batches` worker batches."""
        counts = self.phase is not Phase.EVALUATE
        return dataclasses.replace(
            self,
            step=self.step + 1,
            worker_batches=self.worker_batches + worker_batches,
            global_step=self.global_step + counts,
            progress=self.progress + 1,
        )

    def start_of(self, phase: Phase, epoch: int) -> Cursor:
        """Returns the beginning of a phase."""
        return dataclasses.replace(self, phase=phase, epoch=epoch, step=0, worker_batches=0)

    def to_json(self) -> dict[str, Any]:
        """Returns the cursor as JSON."""
        return {**dataclasses.asdict(self), "phase": self.phase.value}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Cursor:
        """Returns the cursor that `to_json` was called on."""
        return cls(**{**content, "phase": Phase(content["phase"])})
