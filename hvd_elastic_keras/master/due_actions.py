"""Collects the decisions about many events, and writes them down and carries them out together.

Many workers send the same message at the same moment, when they come or enter a round. Writing the
journal for each of them alone would take longer than everything else. Together, writing and
carrying out take a fifth of the time at most.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable

from hvd_elastic_keras.master.machine.actions import Action
from hvd_elastic_keras.master.machine.state import State
from hvd_elastic_keras.master.machine.value import decided_alike

log = logging.getLogger(__name__)
PAUSE = 4.0
"""Pause after carrying out, as a multiple of the time that this took. Decisions made in the pause
wait for others to come."""


class DueActions:
    """Carries out actions in order, without a pause if nothing was carried out just before.

    Args:
      keep: writes all decisions down.
      execute: carries out an action.
      notify: wakes the requests that wait for news.
    """

    def __init__(
        self,
        keep: Callable[[], None],
        execute: Callable[[Action], None],
        notify: Callable[[], None],
    ) -> None:
        self._keep, self._execute, self._notify = keep, execute, notify
        self._due: list[Action] = []
        self._decided = False
        self._has_news = False
        self._kept: asyncio.Event | None = None
        self._not_before = 0.0
        self._ended = False

    def add(self, before: State, after: State, actions: Iterable[Action]) -> None:
        """Takes the state and the actions that an event has led to."""
        self._due += actions
        self._has_news |= before.version != after.version
        self.add_decision(not decided_alike(before, after))

    def add_decision(self, decided: bool = True) -> None:
        """Schedules what is due; if `decided`, the decisions are written down, too.

        Callers outside use this for a decision that is no part of the state but is written with it.
        """
        self._decided |= decided
        if self._ended:
            return
        if (self._due or self._decided) and self._kept is None:
            loop = asyncio.get_running_loop()
            self._kept = asyncio.Event()
            pause_s = max(0.0, self._not_before - loop.time())
            loop.call_later(pause_s, self._carry_out, self._kept)

    async def kept(self) -> None:
        """Returns when all decisions until now are written down and are being carried out."""
        if self._kept is not None:
            await self._kept.wait()

    def end(self) -> None:
        """Carries out what is left. Later decisions are ignored: the files will be closed."""
        if self._kept is not None:
            self._carry_out(self._kept)
        self._ended = True

    def _carry_out(self, kept: asyncio.Event) -> None:
        if kept.is_set():
            return  # `end` has carried them out
        due, self._due = self._due, []
        decided, self._decided = self._decided, False
        has_news, self._has_news = self._has_news, False
        self._kept = None
        loop = asyncio.get_running_loop()
        began = loop.time()
        if decided:
            _each_by_itself(self._keep)
        kept.set()  # before the actions: the last one may end the job and all connections
        self.execute(due)
        if has_news:
            _each_by_itself(self._notify)
        self._not_before = loop.time() + PAUSE * (loop.time() - began)

    def execute(self, actions: Iterable[Action]) -> None:
        """Carries out actions in order. If one fails, the others are still carried out."""
        for action in actions:
            _each_by_itself(functools.partial(self._execute, action))


def _each_by_itself(call: Callable[[], None]) -> None:
    """Calls a function, and logs an error: the other decisions must still be carried out.

    An error here is a defect of this program.
    """
    try:
        call()
    except Exception:
        log.exception("what the master has decided could not be carried out")
