"""The workers' shares of the batches: even, or by speed, which is kept from round to round."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_elastic_keras.common.batch_plan import describe_shares
from hvd_elastic_keras.common.events import SharesBalanced
from hvd_elastic_keras.loop.observer import Policy, Round, TakenStep
from hvd_elastic_keras.loop.speed_balance import Balance, known_slowness
from hvd_elastic_keras.loop.start_notices import Announcer
from hvd_elastic_keras.state.run_state import RunState


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
