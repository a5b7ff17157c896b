"""The line about a new round that people see. Pure."""

from __future__ import annotations

from hvd_elastic_keras.common.batch_plan import describe_shares
from hvd_elastic_keras.master.machine.phases import Confirming
from hvd_elastic_keras.master.machine.reasons import START, told


def round_line(
    confirming: Confirming, shares: list[int], training: int, lost: int, stall_s: float
) -> str:
    """Says who trains from now on, why, and what the change has cost.

    Args:
      shares: micro-batches of each member; empty for the user's own training loop.
      lost: steps that have to be trained again.
    """
    size, before = len(confirming.members), confirming.size_before
    change = f"{before} → {size}" if before else f"{size}"
    plural = "" if size == 1 else "s"
    members = ", ".join(confirming.members)
    noun = "micro-batch" if sum(shares) == 1 else "micro-batches"
    parts = f", {describe_shares(shares)} {noun}" if shares else ""
    if not before and confirming.reasons == (START,):
        what = f"start training {training}" if training > 1 else "start"
        return f"round {confirming.number}: {size} worker{plural} ({members}) {what}{parts}"
    unit = "step" if shares else "commit"  # the user's own loop has no shares
    return (
        f"round {confirming.number}: {change} worker{plural} ({members}){parts}: "
        f"{told(confirming.reasons)}; stalled {stall_s:.2f} s, "
        f"{lost} {unit}{'' if lost == 1 else 's'} lost"
    )
