"""Finds silent workers, and tells which of them are known to run. Pure."""

from __future__ import annotations

from hvd_elastic_keras.master.machine.state import Worker
from hvd_elastic_keras.master.machine.transition import Transition


def is_silent(t: Transition, worker: Worker) -> bool:
    """Whether a worker was heard of before, but not for `heartbeat_timeout_s`."""
    heard_at = worker.last_heartbeat
    return heard_at is not None and t.now - heard_at > t.config.heartbeat_timeout_s


def is_known_to_run(t: Transition, worker: Worker) -> bool:
    """Whether somebody reports that the process of a worker runs.

    Such reports have to be repeated. They end when the process stops or its host is cut off: the
    worker is then found after `heartbeat_timeout_s`, like any other.
    """
    told_at = worker.alive_at
    return told_at is not None and t.now - told_at <= t.config.heartbeat_timeout_s / 2
