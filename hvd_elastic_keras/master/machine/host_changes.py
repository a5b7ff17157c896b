"""How the slots of a job follow hosts that come and go. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hvd_elastic_keras.common.config import JobConfig
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.change_request import slots_to_revoke
from hvd_elastic_keras.master.machine.state import State

Slots = Mapping[str, int]
"""Number of slots, by host."""


def within(wanted: Slots, most: int) -> dict[str, int]:
    """Returns the first `most` slots, in the order of the hosts.

    >>> within({"a": 2, "b": 4}, 3)
    {'a': 2, 'b': 1}
    """
    left = most
    found = {}
    for host, slots in wanted.items():
        found[host] = min(slots, left)
        left -= found[host]
    return found


def follow(
    config: JobConfig, state: State, known: Slots, wanted: Slots
) -> list[act.GrantSlots | act.RevokeSlots]:
    """Returns the grants and revocations that lead from the `known` slots to the `wanted` ones.

    Slots that were given back in another way (`ctl remove`, SIGTERM) are not granted again. The
    workers of a host that is taken away leave after the current step. Below `min_workers`, the job
    waits.
    """
    before, after = within(known, config.max_workers), within(wanted, config.max_workers)
    changes = {h: after.get(h, 0) - before.get(h, 0) for h in dict.fromkeys([*before, *after])}
    # Revoked slots come first: they may make room for granted ones.
    revoked = [_revoke(state, host, -by) for host, by in changes.items() if by < 0]
    granted = [act.GrantSlots(host, by) for host, by in changes.items() if by > 0]
    return [*(r for r in revoked if r.workers or r.empty), *granted]


def _revoke(state: State, host: str, count: int) -> act.RevokeSlots:
    there = min(count, state.slots.get(host, 0))
    empty, leavers = slots_to_revoke(state, [host] if there else [], there)
    return act.RevokeSlots(tuple(w.worker_id for w in leavers), empty, deadline_s=None)
