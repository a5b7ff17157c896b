"""How many micro-batches each worker computes: equally many, or as many as its speed allows.

Pure numbers. Every worker sees the same measurements, which travel with the allreduce of a step,
so that all come to the same shares without another message.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from hvd_elastic_keras.batch_plan import Share, shares_of

WINDOW_STEPS = 10
WINDOW_S = 3.0
"""A window has at least so many steps and seconds of computing. The median over them counts, so
that a hiccup changes nothing."""
WINDOWS = 2
"""Shares change only if by each of so many successive windows it would have paid, so that a worker
is slower for longer than one of them. Each change asks the next one for a window more: speeds that
keep changing are nothing to follow."""
LEAST_GAIN = 0.1
"""It pays if the slowest worker of a step is expected to take so much less time."""


class Balance:
    """The shares of one round: even until measurements say better.

    Args:
      size: workers in the round.
      num_micro_batches: of a full global batch.
    """

    def __init__(self, size: int, num_micro_batches: int) -> None:
        self.shares = shares_of(size, num_micro_batches)
        self._measured: list[Sequence[float]] = []
        self._computed_s = 0.0
        self._windows: list[list[float]] = []
        """The newest medians by rank, of as many windows as have to agree."""
        self._windows_to_agree = WINDOWS
        self._weights: list[float] = [1.0] * size
        """Seconds per example that the present shares come from."""

    @property
    def slowness(self) -> list[float]:
        """By rank: seconds per example in proportion to those of the fastest worker."""
        return [round(weight / min(self._weights), 2) for weight in self._weights]

    def share(self, rank: int, num_micro_batches: int) -> Share:
        """A worker's range of `num_micro_batches`; ranges of successive ranks are successive."""
        shares = apportion(self._weights, num_micro_batches)
        return Share(sum(shares[:rank]), sum(shares[: rank + 1]))

    def after_step(self, seconds: Sequence[float], num_examples: int) -> bool:
        """Takes the measurements of a step; returns whether shares have changed.

        Args:
          seconds: by rank, seconds per example; 0 for a worker that had none.
          num_examples: of the whole step.
        """
        if not all(value > 0 for value in seconds):
            return False  # the short last step of an epoch
        self._measured.append(seconds)
        self._computed_s += _time(seconds, self.shares) * num_examples / sum(self.shares)
        if len(self._measured) < WINDOW_STEPS or self._computed_s < WINDOW_S:
            return False
        window = [statistics.median(values) for values in zip(*self._measured, strict=True)]
        self._measured, self._computed_s = [], 0.0
        self._windows = [*self._windows, window][-self._windows_to_agree :]
        return len(self._windows) == self._windows_to_agree and self._change_if_it_pays()

    def _change_if_it_pays(self) -> bool:
        """Takes the shares that suit the windows' mean, if by each of them they are better."""
        weights = [statistics.fmean(values) for values in zip(*self._windows, strict=True)]
        shares = apportion(weights, sum(self.shares))
        for window in self._windows:
            if _time(window, shares) > (1 - LEAST_GAIN) * _time(window, self.shares):
                return False
        self.shares, self._weights = shares, weights
        self._windows = []
        self._windows_to_agree += 1
        return True


def apportion(weights: Sequence[float], num_micro_batches: int) -> list[int]:
    """The shares with which the worker that needs longest is done soonest; never zero.

    Each micro-batch in turn goes to the worker that would be done with it first, which is optimal
    for equal micro-batches (Ibaraki and Katoh, "Resource Allocation Problems", 1988: greedy
    allocation under separable convex costs). Among equals earlier ranks get more.

    Args:
      weights: by rank, the time that a worker needs for a micro-batch.

    >>> apportion([1, 1, 1], 8), apportion([1, 2], 9), apportion([1, 100], 4), apportion([1, 1], 1)
    ([3, 3, 2], [6, 3], [3, 1], [1, 0])
    """
    size = len(weights)
    if num_micro_batches < size:
        return shares_of(size, num_micro_batches)
    shares = [1] * size
    for _ in range(num_micro_batches - size):
        rank = min(range(size), key=lambda r: (shares[r] + 1) * weights[r])
        shares[rank] += 1
    return shares


def _time(weights: Sequence[float], shares: Sequence[int]) -> float:
    return max(w * s for w, s in zip(weights, shares, strict=True))
