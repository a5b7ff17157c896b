"""Lets a newcomer read its input up to the position of the others before it asks for a place.

A dataset that can only be read from the front may take minutes to reach the present step. In a
round, all workers would wait for that. So a newcomer asks the master where the others read, reads
up to there, asks again, and joins when it is close. It goes on reading along until it has its
place: a spare may wait hours for one.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping

from hvd_elastic_keras.common.protocol import InputPosition
from hvd_elastic_keras.loop.observer import Observer
from hvd_elastic_keras.loop.phase import PhaseRunner
from hvd_elastic_keras.state.cursor import Cursor, Phase

log = logging.getLogger(__name__)
CLOSE_S = 1.0
"""A newcomer is close if it catches up in less time than this."""
ASK_INTERVAL_S = 0.5
"""Equal to the interval at which heartbeats tell where the others read."""


class ReadAlong(Observer):
    """Reads along in a thread until this worker has its first place.

    Args:
      runners: runners of the phases that have an input.
      others_read: returns the position of the other workers; None if there are none.
    """

    def __init__(
        self,
        runners: Mapping[Phase, PhaseRunner],
        others_read: Callable[[], InputPosition | None],
    ) -> None:
        self._runners = runners
        self._others_read = others_read
        self._close = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="elastic-read-along", daemon=True)

    def start(self, gives_up: Callable[[], bool]) -> None:
        """Starts reading. Returns when this worker is close, or `gives_up` returns True."""
        self._thread.start()
        while not self._close.wait(ASK_INTERVAL_S) and not gives_up():
            pass

    def after_entering(self) -> None:
        """Stops the thread. Returns when it no longer uses the inputs."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            took_before = math.inf
            while not self._stopped.is_set():
                began = time.monotonic()
                position = self._others_read()
                if position is not None:
                    self._read_up_to(position)
                took = time.monotonic() - began
                # A worker that reads no faster than the others train will never be closer.
                if took < CLOSE_S or took >= took_before:
                    self._close.set()
                took_before = took
                self._stopped.wait(ASK_INTERVAL_S)
        except Exception as error:  # the user's dataset may raise anything
            log.info("reading along ended: %s", error)  # a step that meets it again reports it
        finally:
            self._close.set()

    def _read_up_to(self, position: InputPosition) -> None:
        phase = Phase(position.phase)
        cursor = Cursor(
            epoch=position.epoch,
            phase=phase,
            step=position.step,
            worker_batches=position.worker_batches,
        )
        runner = self._runners.get(phase)
        if runner is not None:
            runner.input.know_batches_per_pass(position.batches_per_pass)
            runner.read_up_to(cursor, goes_on=lambda: not self._stopped.is_set())
