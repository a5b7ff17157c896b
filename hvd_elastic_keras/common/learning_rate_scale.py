"""The learning rate of a batch that grows with the workers (`batch="per_worker"`). Pure numbers.

The model is compiled with the rate of a reference batch. A batch of k times that size trains with
that rate times k (linear: Goyal et al. 2017, "Accurate, Large Minibatch SGD", arXiv:1706.02677),
times the square root of k (Krizhevsky 2014, arXiv:1404.5997; Hoffer et al. 2017, "Train longer,
generalize better", arXiv:1705.08741), or unchanged.

A large rate at once may undo what has been learnt, so the scale grows over some steps (the
"gradual warm-up" of Goyal et al., section 2.2). A smaller batch needs its smaller rate at once.
There is no momentum correction (their remark 3): Keras multiplies the rate into the velocity, which
forgets the old rate within some steps.
"""

from __future__ import annotations

import dataclasses
import math

from hvd_elastic_keras.common.config import LINEAR, SQRT


@dataclasses.dataclass(frozen=True)
class Growth:
    """How batch and learning rate follow the number of workers.

    Attributes:
      reference_batch_size: examples of the batch that the model's own learning rate belongs to.
      batch_size_per_worker: examples that each worker takes per step.
      lr_scaling: "linear", "sqrt" or "none".
      lr_warm_up_steps: steps over which a larger scale is reached.
    """

    reference_batch_size: int
    batch_size_per_worker: int
    lr_scaling: str
    lr_warm_up_steps: int

    def batch_size(self, workers: int) -> int:
        """Examples of a full step."""
        return workers * self.batch_size_per_worker

    def scale(self, workers: int) -> float:
        """Returns the final factor of the learning rate, after the warm-up.

        >>> [Growth(64, 32, rule, 0).scale(8) for rule in ("linear", "sqrt", "none")]
        [4.0, 2.0, 1.0]
        """
        ratio = self.batch_size(workers) / self.reference_batch_size
        return {LINEAR: ratio, SQRT: math.sqrt(ratio)}.get(self.lr_scaling, 1.0)

    def ramp(self, before: Ramp, workers: int, step: int) -> Ramp:
        """Returns the ramp that follows `before` if `workers` workers train from `step` on."""
        return before.towards(self.scale(workers), step, self.lr_warm_up_steps)


@dataclasses.dataclass(frozen=True)
class Ramp:
    """The scale by optimizer step: from `start` at `first_step` to `end`, `steps` steps later.

    All workers of a job hold the same ramp, so that their weights stay the same to the last bit.
    """

    start: float = 1.0
    end: float = 1.0
    first_step: int = 0
    steps: int = 0

    def at(self, step: int) -> float:
        """The scale of an optimizer step.

        >>> [Ramp(1.0, 3.0, first_step=10, steps=4).at(step) for step in (10, 11, 14, 99)]
        [1.0, 1.5, 3.0, 3.0]
        """
        done = step - self.first_step
        if done >= self.steps:
            return self.end
        return self.start + (self.end - self.start) * done / self.steps

    def steps_left(self, step: int) -> int:
        """Steps, `step` included, that still have less than the final scale."""
        return max(0, self.first_step + self.steps - step)

    def towards(self, end: float, step: int, steps: int) -> Ramp:
        """Returns the ramp from `step` on to the scale `end`: up within `steps`, or down at once.

        >>> Ramp(1.0, 3.0, first_step=0, steps=4).towards(2.0, step=1, steps=4)
        Ramp(start=1.5, end=2.0, first_step=1, steps=4)
        """
        if end == self.end:
            return self
        now = self.at(step)
        if end <= now or steps == 0:
            return Ramp(end, end, step, 0)
        return Ramp(now, end, step, steps)
