"""How many micro-batches each worker computes: equally many, or as many as its speed allows.

Pure numbers. Every worker sees the same measurements, which travel with the allreduce of a step,
so that all come to the same shares without another message.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence

from hvd_elastic_keras.common.batch_plan import Share, shares_of

WINDOW_STEPS = 10
WINDOW_S = 3.0
"""A window has at least so many steps and seconds, in pieces of at least a step and a
`WINDOW_STEPS`th of those seconds. Of each piece the mean counts: a worker that does not run all
the time, because of a quota say, may stand still in one short step of three. Of a window the median
over the pieces counts, so that a hiccup changes nothing."""
WINDOWS = 2
"""Shares change only if by each of so many successive windows it would have paid, so that a worker
is slower for longer than one of them. Each change asks the next one for a window more: speeds that
keep changing are nothing to follow."""
PIECE_S = WINDOW_S / WINDOW_STEPS
LEAST_GAIN = 0.1
"""It pays if the slowest worker of a step is expected to take so much less time."""


class Balance:
    """The shares of one round: even until measurements say better.

    Args:
      size: workers in the round.
      num_micro_batches: of a full global batch.
      slowness: by rank, what is known of the workers from the round before.
      idle: ranks that get no micro-batches.
    """

    def __init__(
        self,
        size: int,
        num_micro_batches: int,
        slowness: Sequence[float] | None = None,
        idle: Collection[int] = (),
    ) -> None:
        self._weights: list[float] = list(slowness or [1.0] * size)
        """Seconds per example that the present shares come from."""
        self.idle = idle
        self.shares = self._apportioned(num_micro_batches)
        self._piece: list[Sequence[float]] = []
        self._pieces: list[list[float]] = []
        """Of the present window: means by rank."""
        self._window_s = 0.0
        self._windows: list[list[float]] = []
        """The newest medians by rank, of as many windows as have to agree."""
        self._windows_to_agree = WINDOWS

    @property
    def is_even(self) -> bool:
        """Whether the workers are taken to be equally fast."""
        return max(self._weights) == min(self._weights)

    @property
    def slowness(self) -> list[float]:
        """By rank: seconds per example in proportion to those of the fastest worker."""
        return [round(weight / min(self._weights), 2) for weight in self._weights]

    def share(self, rank: int, num_micro_batches: int) -> Share:
        """A worker's range of `num_micro_batches`; ranges of successive ranks are successive."""
        shares = self._apportioned(num_micro_batches)
        return Share(sum(shares[:rank]), sum(shares[: rank + 1]))

    def _apportioned(self, num_micro_batches: int) -> list[int]:
        busy = [weight for rank, weight in enumerate(self._weights) if rank not in self.idle]
        shares = iter(apportion(busy, num_micro_batches))
        return [0 if rank in self.idle else next(shares) for rank in range(len(self._weights))]

    def after_step(self, seconds: Sequence[float], num_examples: int) -> bool:
        """Takes the measurements of a step; returns whether shares have changed.

        Args:
          seconds: by rank, seconds of wall time per example, up to the collective; 0 for a worker
            that had none.
          num_examples: of the whole step.
        """
        if not all(value > 0 for value in seconds):
            return False  # the short last step of an epoch
        before_s = self._window_s
        self._window_s += _time(seconds, self.shares) * num_examples / sum(self.shares)
        self._piece.append(seconds)
        if self._window_s // PIECE_S > before_s // PIECE_S:
            self._pieces.append(_by_rank(statistics.fmean, self._piece))
            self._piece = []
        if len(self._pieces) < WINDOW_STEPS or self._window_s < WINDOW_S:
            return False
        window = _by_rank(statistics.median, self._pieces)
        self._piece, self._pieces, self._window_s = [], [], 0.0
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


def known_slowness(slowness: Mapping[str, float], members: Sequence[str]) -> list[float]:
    """By rank, the slowness of workers in a new round, as far as it is known by their ids.

    Newcomers are taken to be like those that are there, and rather fast: they are measured soon.

    >>> known_slowness({"w0": 1.0, "w1": 4.0, "w2": 1.1}, ["w0", "w1", "w3"])
    [1.0, 4.0, 1.0]
    """
    staying = [slowness[member] for member in members if member in slowness]
    usual = statistics.median_low(staying) if staying else 1.0
    return [slowness.get(member, usual) for member in members]


def _by_rank(
    average: Callable[[Sequence[float]], float], measured: Sequence[Sequence[float]]
) -> list[float]:
    return [average(values) for values in zip(*measured, strict=True)]


def _time(weights: Sequence[float], shares: Sequence[int]) -> float:
    return max(w * s for w, s in zip(weights, shares, strict=True))
