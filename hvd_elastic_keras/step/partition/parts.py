"""Groups large gradients into parts. The first parts travel during the backward pass."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from hvd_elastic_keras.step.partition.plan import Plan
from hvd_elastic_keras.step.partition.plan_names import ALIAS, Names

LEAST_BYTES = 16 * 2**20
"""Least total size of gradients that travel in several parts. With fewer bytes, parts would cost
more than they save."""
MOST_PARTS = 4
SMALL = 1 / 256
"""A gradient with a smaller fraction of all bytes is never sent early. It would save nothing, but
could make its part late: busy threads may compute a bias of the last layer after all large products
of the backward pass."""


def parts_of(sizes: Sequence[int]) -> list[list[int]]:
    """Returns which tensors travel together.

    Small tensors wait for the last part. Each part is its own collective, which begins while the
    rest of the backward pass is computed. The parts are the same on all workers, because they
    follow from sizes alone.

    Args:
      sizes: bytes of each tensor, in the order in which the tensors are computed.

    Returns:
      The parts, as lists of places in `sizes`. Each place is in one part. The last part has the
      last tensor.
    """
    everything = list(range(len(sizes)))
    if sum(sizes) < LEAST_BYTES:
        return [everything]
    early: list[list[int]] = []
    part: list[int] = []
    for i in everything[:-1]:
        if sizes[i] < SMALL * sum(sizes):
            continue
        part.append(i)
        if MOST_PARTS * sum(sizes[j] for j in part) >= sum(sizes):
            early.append(part)
            part = []
    are_early = set(itertools.chain(*early))
    return [*early, [i for i in everything if i not in are_early]]


def in_order_of_making(plan: Plan, names: Iterable[str]) -> list[str]:
    """Returns names of tensors of a plan, in the order in which the tensors are computed."""
    known = Names(plan)
    made = [p for p in plan.operations if p.decision.how != ALIAS]
    places = {known.of(t.name): i for i, p in enumerate(made) for t in p.op.outputs}
    return sorted(names, key=lambda name: places.get(known.of(name), 0))
