"""Forgets old failures: one failure a day must not use up the restarts of a long job. Pure."""

from __future__ import annotations

import dataclasses

from hvd_elastic_keras.master.machine.restart_policy import still_counted
from hvd_elastic_keras.master.machine.slots import count_replacements, host_with_room, launch
from hvd_elastic_keras.master.machine.transition import Transition


def forget_old_failures(t: Transition) -> None:
    """Gives back the restarts of long ago, and fills slots for which no restart was left."""
    before = t.restarts.replacements
    kept = still_counted(t.config, before, t.now, t.training.progress)
    if len(kept) == len(before):
        return
    t.restarts = dataclasses.replace(t.restarts, replacements=kept)
    if not t.stop and not t.training.finishing:
        _fill_slots(t)


def _fill_slots(t: Transition) -> None:
    missing = sum(t.slots.values()) - len(t.staying)
    count = max(0, min(missing, t.config.max_restarts - t.restarts.used))
    if not count:
        return
    used = count_replacements(t, count)
    started = [launch(t, 0.0, host_with_room(t)) for _ in range(count)]
    t.say(
        f"earlier failures are long ago: starting {', '.join(started)} (restart {used} of "
        f"{t.config.max_restarts})"
    )
