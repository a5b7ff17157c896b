"""Gives workers their ranks. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_elastic_keras.common.protocol import Assignment
from hvd_elastic_keras.master.machine.state import Worker


def rank_order(workers: Sequence[Worker]) -> list[Worker]:
    """Orders workers by rank: the newest state first, among equals the most senior.

    Rank 0 is the root of the round: the others take its state.
    """
    return sorted(workers, key=lambda w: (*_staleness(w), _seniority(w), w.number))


def _staleness(worker: Worker) -> tuple[bool, int]:
    entry = worker.entry
    return (not entry.has_state, -entry.progress) if entry else (True, 0)


def _seniority(worker: Worker) -> float:
    return float("inf") if worker.seniority is None else worker.seniority


def machine_of(worker: Worker, own_machines: bool) -> str:
    """The machine that a worker is on; see `JobConfig.own_machines`."""
    return worker.worker_id if own_machines and not worker.by_itself else worker.host


def assignments(
    round_number: int, ordered: Sequence[Worker], *, own_machines: bool = False
) -> dict[str, Assignment]:
    """Returns the places of all members, by worker id. The server fills in `rendezvous`."""
    machines = {w.worker_id: machine_of(w, own_machines) for w in ordered}
    hosts = list(dict.fromkeys(machines.values()))
    by_host = {h: [w for w, machine in machines.items() if machine == h] for h in hosts}
    newest = _staleness(ordered[0])
    root_has_state = not newest[0]
    sync = not root_has_state or any(_staleness(w) != newest for w in ordered)
    members = tuple(w.worker_id for w in ordered)
    result = {}
    for rank, worker in enumerate(ordered):
        there = by_host[machines[worker.worker_id]]
        local_rank = there.index(worker.worker_id)
        peers = [h for h in hosts if len(by_host[h]) > local_rank]
        result[worker.worker_id] = Assignment(
            round=round_number,
            rank=rank,
            size=len(ordered),
            local_rank=local_rank,
            local_size=len(there),
            cross_rank=peers.index(machines[worker.worker_id]),
            cross_size=len(peers),
            members=members,
            sync=sync,
            root_has_state=root_has_state,
            rendezvous="",
        )
    return result
