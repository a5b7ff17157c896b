"""Answers workers: passes their messages to the state machine, and may hold their requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from hvd_elastic_keras.common import messages, protocol
from hvd_elastic_keras.master.claim_desk import ClaimDesk
from hvd_elastic_keras.master.entrance import Entrance
from hvd_elastic_keras.master.machine.impossible import impossible_in
from hvd_elastic_keras.master.machine.state import State, input_reply, root_of, update_for
from hvd_elastic_keras.master.news import News
from hvd_elastic_keras.master.recorded_entries import RecordedEntries
from hvd_elastic_keras.master.told_notices import ToldNotices
from hvd_elastic_keras.observe.console import Console
from hvd_elastic_keras.observe.event_log import EventLog


class WorkerDesk:
    """Answers the workers of a job.

    Args:
      changed: wakes the requests that wait for news.
      state: returns the present state of the job.
      dispatch: passes events to the state machine.
      keep: writes the decisions down.
      kept: waits until the decisions are on disk.

    Attributes:
      claims: decides which worker does a task that only one worker may do.
      entrance: holds the workers that wait for a place in the next round.
      recorded: the entries that rank 0 has recorded.
    """

    def __init__(
        self,
        console: Console,
        event_log: EventLog,
        changed: News,
        *,
        state: Callable[[], State],
        dispatch: Callable[..., None],
        keep: Callable[[], None],
        kept: Callable[[], Awaitable[None]],
    ) -> None:
        self.claims = ClaimDesk(state, changed)
        self.entrance = Entrance()
        self.recorded = RecordedEntries(console, event_log)
        self._notices = ToldNotices(console, event_log)
        self._console = console
        self._changed = changed
        self._state = state
        self._dispatch = dispatch
        self._keep = keep
        self._kept = kept

    def impossible_in(self, message: messages.Message) -> str:
        """Says what cannot be true in a worker's message; empty if nothing speaks against it."""
        return impossible_in(self._state(), message)

    def on_worker_event(self, event: protocol.WorkerEvent) -> None:
        """Handles a worker's message."""
        if isinstance(event, protocol.Console):
            if event.progress:
                self._console.progress(event.progress, event.text)
            else:
                self._console.raw(event.text)
        elif isinstance(event, protocol.Notice):
            self._notices.tell(event)
            self.recorded.hear(event)
        elif isinstance(event, protocol.Record):
            self.recorded.write(event)
        else:
            self._dispatch(event)

    async def enter(self, request: protocol.EnterRequest) -> protocol.EnterReply:
        """Holds a worker at the entrance until it has a place, or tells it to ask again."""
        return await self.entrance.enter(request, self._dispatch)

    async def update_after(self, worker_id: str, version: int) -> protocol.WorkerUpdate:
        """Returns a worker's update when the state is newer than `version`, or after a time."""
        limit_s = protocol.LONG_POLL_S
        await self._changed.wait_for_newer(lambda: self._state().version, version, limit_s)
        await self._kept()
        return update_for(self._state(), worker_id)

    def input_position(self) -> protocol.InputReply:
        """Returns the input position, which newcomers ask for before they join."""
        return input_reply(self._state())

    async def claim(self, request: protocol.ClaimRequest) -> protocol.ClaimReply:
        """Waits until it is decided which worker does a task, or tells this one to ask again."""
        reply = await self.claims.claim(request)
        self._keep()
        return reply

    def release(self, request: protocol.ReleaseRequest) -> None:
        """Notes that a worker has done its task, or has failed to."""
        self.claims.release(request)
        self._keep()
        self._changed.tell()

    def root(self) -> protocol.RootReply:
        """Returns the root: the worker that stands for all."""
        return protocol.RootReply(worker_id=root_of(self._state()))
