"""The workers' shares of the batches: even, or by speed, which is kept from round to round.

Pure numbers. The measurements travel with the allreduce of a step, so every worker sees the same
ones. Therefore all workers come to the same shares without another message.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence

from hvd_elastic_keras.common.batch_plan import Share, describe_shares, shares_of
from hvd_elastic_keras.common.events import SharesBalanced
from hvd_elastic_keras.loop.observer import Policy, Round, TakenStep
from hvd_elastic_keras.loop.start_notices import Announcer
from hvd_elastic_keras.state.run_state import RunState

WINDOW_STEPS = 10
WINDOW_S = 3.0
"""Least length of a window, in pieces and in seconds.

A piece has at least one step and about `PIECE_S` seconds. A piece counts with its mean: a worker
that does not run all the time, because of a quota for example, may stand still in one short step of
three. A window counts with the median of its pieces, so that a hiccup changes nothing."""
WINDOWS = 2
"""Successive windows in each of which new shares must have paid before the first change.

So a worker has to be slower for longer than one window. Each change raises this number by one for
the next change: speeds that keep changing are not worth following."""
PIECE_S = WINDOW_S / WINDOW_STEPS
LEAST_GAIN = 0.1
"""New shares pay if they are expected to shorten the slowest worker's time by this fraction."""


class Balance:
    """The shares of one round: even until measurements suggest better ones.

    Args:
      size: workers in the round.
      num_micro_batches: micro-batches of a full global batch.
      slowness: by rank, slowness of the workers as known from the round before.
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
        """Seconds per example, by rank, from which the present shares were computed."""
        self.idle = idle
        self.shares = self._apportioned(num_micro_batches)
        self._piece: list[Sequence[float]] = []
        self._pieces: list[list[float]] = []
        """Means by rank of each piece of the present window."""
        self._window_s = 0.0
        self._windows: list[list[float]] = []
        """Medians by rank of the newest windows, at most as many as have to agree."""
        self._windows_to_agree = WINDOWS

    @property
    def is_even(self) -> bool:
        """Whether the workers are assumed to be equally fast."""
        return max(self._weights) == min(self._weights)

    @property
    def slowness(self) -> list[float]:
        """Seconds per example by rank, relative to the fastest worker."""
        return [round(weight / min(self._weights), 2) for weight in self._weights]

    def share(self, rank: int, num_micro_batches: int) -> Share:
        """Returns a worker's range of the micro-batches; successive ranks get successive ranges."""
        shares = self._apportioned(num_micro_batches)
        return Share(sum(shares[:rank]), sum(shares[: rank + 1]))

    def _apportioned(self, num_micro_batches: int) -> list[int]:
        busy = [weight for rank, weight in enumerate(self._weights) if rank not in self.idle]
        shares = iter(apportion(busy, num_micro_batches))
        return [0 if rank in self.idle else next(shares) for rank in range(len(self._weights))]

    def after_step(self, seconds: Sequence[float], num_examples: int) -> bool:
        """Takes the measurements of a step. Returns whether the shares have changed.

        Args:
          seconds: by rank, seconds of wall time per example, up to the collective; 0 for a worker
            that had no examples.
          num_examples: examples of the whole step.
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
        """Takes the shares that fit the mean of all windows, if they pay in each window."""
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
    """Returns the shares with which the slowest worker is done soonest.

    No share is zero if there is a micro-batch for each worker. Each micro-batch in turn goes to the
    worker that would be done with it first. This is optimal for equal micro-batches (Ibaraki and
    Katoh, "Resource Allocation Problems", 1988: greedy allocation under separable convex costs).
    Among equally fast workers, earlier ranks get more.

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
    """Returns the slowness of the workers of a new round by rank, as known by their ids.

    A newcomer gets the lower median of the known workers: it is assumed to be rather fast, and is
    measured soon.

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


class Shares(Policy):
    """Keeps the shares of the present round. They follow the speed if the steps measure it.

    All workers come to the same shares. The shares decide which worker computes which rows, and
    nothing else. The known speeds are part of the state, for newcomers (`RunState.slowness`).

    Args:
      num_micro_batches: micro-batches of a full global batch.
    """

    def __init__(self, state: RunState, num_micro_batches: int, announcer: Announcer) -> None:
        self._state = state
        self._num_micro_batches = num_micro_batches
        self._announcer = announcer
        self._members: tuple[str, ...] = ()
        self.balance = Balance(1, num_micro_batches)
        """The shares of the present round."""
        self.changes = 0
        """How often the shares have changed. Batches cut before the last change are void."""

    def after_sync(self, entered: Round) -> None:
        """Begins the shares of a new round; workers of earlier rounds keep their known speed.

        A worker still receiving its state computes nothing in its first step.
        """
        self._members = entered.place.members
        self._begin(idle=self._state.late_ranks)
        if not self.balance.is_even:
            self._tell()

    def after_step(self, step: TakenStep) -> None:
        """Changes the shares from the next step on if it pays, or if all now have a state."""
        if self.balance.idle:
            self._begin()
            return
        measured = bool(step.result.seconds) and not step.result.change_pending
        if measured and self._change(step):
            self.changes += 1
            self._state.slowness = self._slowness()
            self._tell()

    def _begin(self, idle: Sequence[int] = ()) -> None:
        known = known_slowness(self._state.slowness, self._members)
        self.balance = Balance(len(self._members), self._num_micro_batches, known, idle)
        self.changes += 1

    def _change(self, step: TakenStep) -> bool:
        seconds = step.result.seconds[: step.place.size]
        return self.balance.after_step(seconds, step.num_examples)

    def _slowness(self) -> dict[str, float]:
        return dict(zip(self._members, self.balance.slowness, strict=True))

    def _tell(self) -> None:
        balance, slowness, step = self.balance, self._slowness(), self._state.cursor.global_step
        slowest = max(slowness, key=slowness.__getitem__)
        self._announcer.announce(
            f"shares follow speed from step {step} on: {describe_shares(balance.shares)} "
            f"micro-batches; slowest is {slowest}, {slowness[slowest]:.1f} times the fastest's "
            "time per example",
            SharesBalanced(step=step, micro_batches=balance.shares, slowness=slowness),
        )
