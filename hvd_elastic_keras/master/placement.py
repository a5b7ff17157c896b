"""Who gets which rank. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_elastic_keras.master.state import Worker
from hvd_elastic_keras.protocol import Assignment


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


def assignments(round_number: int, ordered: Sequence[Worker]) -> dict[str, Assignment]:
    """The places of all members, by worker id. `rendezvous` is left to the server."""
    hosts = list(dict.fromkeys(w.host for w in ordered))
    by_host = {h: [w.worker_id for w in ordered if w.host == h] for h in hosts}
    newest = _staleness(ordered[0])
    root_has_state = not newest[0]
    sync = not root_has_state or any(_staleness(w) != newest for w in ordered)
    members = tuple(w.worker_id for w in ordered)
    result = {}
    for rank, worker in enumerate(ordered):
        local_rank = by_host[worker.host].index(worker.worker_id)
        peers = [h for h in hosts if len(by_host[h]) > local_rank]
        result[worker.worker_id] = Assignment(
            round=round_number,
            rank=rank,
            size=len(ordered),
            local_rank=local_rank,
            local_size=len(by_host[worker.host]),
            cross_rank=peers.index(worker.host),
            cross_size=len(peers),
            members=members,
            sync=sync,
            root_has_state=root_has_state,
            rendezvous="",
        )
    return result
