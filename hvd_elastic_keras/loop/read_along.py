"""A newcomer reads its input up to where the others are before it asks for a place among them.

A dataset that can only be read from the front may take minutes to reach the present step. In a
round, everybody would wait for that. So a newcomer asks the master where the others read, reads up
to there, asks again, and joins when it is close. It goes on reading along until it has its place: a
spare may wait for that for hours.
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
"""Who has caught up in less time than this is close."""
ASK_INTERVAL_S = 0.5
"""As often as heartbeats tell where the others read."""


class ReadAlong(Observer):
    """Reads along in a thread until this worker has its first place.

    Args:
      runners: of the phases that have an input.
      others_read: where they are; None if there is nobody.
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
        """Begins, and returns when this worker is close, or `gives_up` says so."""
        self._thread.start()
        while not self._close.wait(ASK_INTERVAL_S) and not gives_up():
            pass

    def after_entering(self) -> None:
        """Returns when the thread has left the inputs alone."""
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
                # Who reads no faster than the others train will never be closer.
                if took < CLOSE_S or took >= took_before:
                    self._close.set()
                took_before = took
                self._stopped.wait(ASK_INTERVAL_S)
        except Exception as error:  # the user's dataset may raise anything
            log.info("reading along ended: %s", error)  # told when a step meets it again
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
