"""Who does not speak, and what is known of them all the same. Pure."""

from __future__ import annotations

from hvd_elastic_keras.master.machine.state import Worker
from hvd_elastic_keras.master.machine.transition import Transition


def is_silent(t: Transition, worker: Worker) -> bool:
    """Whether it was heard of before, and not for `heartbeat_timeout_s`."""
    heard_at = worker.last_heartbeat
    return heard_at is not None and t.now - heard_at > t.config.heartbeat_timeout_s


def is_known_to_run(t: Transition, worker: Worker) -> bool:
    """Whether somebody tells that its process runs.

    That has to be told again and again: so a worker that stops with its process, or whose host is
    cut off, is found after `heartbeat_timeout_s` as ever.
    """
    told_at = worker.alive_at
    return told_at is not None and t.now - told_at <= t.config.heartbeat_timeout_s / 2
