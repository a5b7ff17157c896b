"""Answers workers: passes their messages to the state machine, and may hold their requests.

This module also has: claims of tasks that only one worker may do, requests held
at the entrance of a round, notices and entries that are shown and recorded once, and the check for
messages that cannot be true.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from hvd_elastic_keras.common import events, messages, protocol
from hvd_elastic_keras.common.protocol import Notice, Record
from hvd_elastic_keras.master.context import MasterContext
from hvd_elastic_keras.master.machine import claims
from hvd_elastic_keras.master.machine.state import State, input_reply, root_of, update_for
from hvd_elastic_keras.observe.console import Console
from hvd_elastic_keras.observe.event_log import EventLog

CLAIM_TICK_S = 0.25
"""Seconds between two looks at a waiting claim: time alone may decide it."""
ANY = 0
"""Stands for any training, in place of its number."""
MOST_STEPS_AHEAD = 10_000_000
"""More steps than workers take between two messages, even while the launcher is suspended."""


class WorkerHandler:
    """Answers the workers of a job.

    Attributes:
      claims: decides which worker does a task that only one worker may do.
      entrance: holds the workers that wait for a place in the next round.
      recorded: the entries that rank 0 has recorded.
    """

    def __init__(self, master: MasterContext) -> None:
        self.claims = ClaimHandler(master)
        self.entrance = Entrance()
        self.recorded = RecordedEntries(master.console, master.events)
        self._notices = ShownNotices(master.console, master.events)
        self._master = master

    def impossible_in(self, message: messages.Message) -> str:
        """Says what cannot be true in a worker's message; empty if nothing speaks against it."""
        return impossible_in(self._master.state, message)

    def on_worker_event(self, event: protocol.WorkerEvent) -> None:
        """Handles a worker's message."""
        if isinstance(event, protocol.Console):
            if event.progress:
                self._master.console.progress(event.progress, event.text)
            else:
                self._master.console.raw(event.text)
        elif isinstance(event, protocol.Notice):
            self._notices.tell(event)
            self.recorded.hear(event)
        elif isinstance(event, protocol.Record):
            self.recorded.write(event)
        else:
            self._master.dispatch(event)

    async def enter(self, request: protocol.EnterRequest) -> protocol.EnterReply:
        """Holds a worker at the entrance until it has a place, or tells it to ask again."""
        return await self.entrance.enter(request, self._master.dispatch)

    async def update_after(self, worker_id: str, version: int) -> protocol.WorkerUpdate:
        """Returns a worker's update when the state is newer than `version`, or after a time."""
        master, limit_s = self._master, protocol.LONG_POLL_S
        await master.changed.wait_for_newer(lambda: master.state.version, version, limit_s)
        await master.kept()
        return update_for(master.state, worker_id)

    def input_position(self) -> protocol.InputReply:
        """Returns the input position, which newcomers ask for before they join."""
        return input_reply(self._master.state)

    async def claim(self, request: protocol.ClaimRequest) -> protocol.ClaimReply:
        """Waits until it is decided which worker does a task, or tells this one to ask again."""
        reply = await self.claims.claim(request)
        self._master.keep()
        return reply

    def release(self, request: protocol.ReleaseRequest) -> None:
        """Notes that a worker has done its task, or has failed to."""
        self.claims.release(request)
        self._master.keep()
        self._master.changed.tell()

    def root(self) -> protocol.RootReply:
        """Returns the root: the worker that stands for all."""
        return protocol.RootReply(worker_id=root_of(self._master.state))


class ClaimHandler:
    """Answers claims, by the rules of `machine.claims`.

    Attributes:
      known: all claims so far; another master goes on with them.
    """

    def __init__(self, master: MasterContext) -> None:
        self._master = master
        self.known = claims.Claims()

    async def claim(self, request: protocol.ClaimRequest) -> protocol.ClaimReply:
        """Waits until it is decided which worker does a task, or tells this one to ask again."""
        deadline = time.monotonic() + protocol.LONG_POLL_S
        while True:
            now = time.monotonic()
            present = _present(self._master.state)
            self.known, verdict = claims.claim(self.known, request, present, now)
            if verdict is not claims.Verdict.WAIT or now > deadline:
                break
            await self._master.changed.wait(CLAIM_TICK_S)
        return protocol.ClaimReply(
            granted=verdict is claims.Verdict.DO,
            done=verdict is claims.Verdict.DONE,
            holder=claims.holder_of(self.known, request.name, present.alive) or "",
            result=claims.result_for(self.known, request),
        )

    def release(self, request: protocol.ReleaseRequest) -> None:
        """Notes that a worker has done its task, or has failed to."""
        self.known = claims.release(self.known, request)

    def forget(self, training: int) -> None:
        """Forgets the tasks done in a training: its steps and its files are made again."""
        self.known = claims.forget(self.known, training)


def _present(state: State) -> claims.Present:
    root = state.workers.get(root_of(state))
    if root is None:
        return claims.Present("", 0, state.workers.keys())
    return claims.Present(root.worker_id, root.training, state.workers.keys())


class Entrance:
    """Holds the requests of workers until they are answered, or until it is time to ask again.

    If a worker is not waiting, its answer is kept for its next request. An answer for another
    training than that of the request is dropped. So is an answer that the worker has got already: a
    request that is sent again may be answered twice, and the answer may not hold any more.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[int, asyncio.Future[protocol.EnterReply]]] = {}
        self._replies: dict[str, tuple[int, protocol.EnterReply]] = {}
        self._given: dict[str, protocol.EnterReply] = {}
        """The newest answer of each worker."""

    async def enter(
        self,
        request: protocol.EnterRequest,
        dispatch: Callable[[protocol.EnterRequest], None],
    ) -> protocol.EnterReply:
        """Holds a worker until it has a place, or tells it to ask again."""
        worker_id = request.worker_id
        training, known = self._replies.pop(worker_id, (ANY, None))
        if known and training in (ANY, request.training):
            self._given[worker_id] = known
            return known
        future: asyncio.Future[protocol.EnterReply] = asyncio.get_running_loop().create_future()
        mine = self._waiting[worker_id] = request.training, future
        dispatch(request)
        try:
            return await asyncio.wait_for(future, protocol.LONG_POLL_S)
        except asyncio.TimeoutError:
            return protocol.EnterReply()
        finally:
            if self._waiting.get(worker_id) is mine:
                del self._waiting[worker_id]

    def answer(self, worker_id: str, reply: protocol.EnterReply, training: int = ANY) -> None:
        """Answers a worker, now or when it asks next.

        Args:
          training: number of the training that the answer is for.
        """
        asked, future = self._waiting.get(worker_id, (training, None))
        if training not in (ANY, asked):
            return
        self._waiting.pop(worker_id, None)
        if future and not future.done():
            future.set_result(reply)
            self._given[worker_id] = reply
        elif reply != self._given.get(worker_id):
            self._replies[worker_id] = training, reply

    def gone(self, worker_id: str) -> None:
        """Forgets a worker that will not ask any more."""
        self._replies.pop(worker_id, None)
        self._given.pop(worker_id, None)
        _, waiting = self._waiting.pop(worker_id, (ANY, None))
        if waiting and not waiting.done():
            waiting.cancel()


class ShownNotices:
    """Remembers the notices so far: another worker, such as the next rank 0, may repeat one."""

    def __init__(self, console: Console, events: EventLog) -> None:
        self._console = console
        self._events = events
        self._contents: set[bytes] = set()

    def tell(self, notice: Notice) -> None:
        """Shows and records a notice, unless a worker has sent it before in its training."""
        content = msgspec.json.encode((notice.training, notice.text, notice.entry))
        if content in self._contents:
            return
        self._contents.add(content)
        if notice.text:
            self._console.raw(f"{notice.prefix}{notice.text}\n")
        if notice.entry is not None:
            self._events.write(notice.entry)


class RecordedEntries:
    """Writes entries, and remembers the newest step that they are about."""

    def __init__(self, console: Console, log: EventLog) -> None:
        self._console = console
        self._log = log
        self._training, self._step = 0, 0

    def write(self, record: Record) -> None:
        """Adds an entry to the log, and tells people if it is a loaded checkpoint."""
        entry = record.entry
        self._log.write(entry)
        self._note(record.training, entry)
        if isinstance(entry, events.CheckpointLoaded):
            unit = entry.unit or "step"
            self._console.line(f"going on from the checkpoint of {unit} {entry.step}")

    def hear(self, notice: Notice) -> None:
        """Notes the step of a notice's entry, unless it is old: notices may be repeated.

        `ShownNotices` writes the entry.
        """
        step = notice.entry and events.step_of(notice.entry)
        if notice.entry and (step or 0) > self.newest_step(notice.training):
            self._note(notice.training, notice.entry)

    def _note(self, training: int, entry: events.WorkerEntry) -> None:
        step = events.step_of(entry)
        if step is not None and training >= self._training:
            self._training, self._step = training, step

    def newest_step(self, training: int) -> int:
        """Returns the exact step of a training; 0 if unknown. Heartbeats lag some steps behind."""
        return self._step if self._training == training else 0


def impossible_in(state: State, message: messages.Message) -> str:
    """Says what cannot be true in a worker's message; empty if nothing speaks against it."""
    training = getattr(message, "training", 0)
    if training > state.training.number + 1:
        return _told("training", training, state.training.number)
    number = getattr(message, "from_round", getattr(message, "round", 0))
    if number > state.rounds.last_number:
        return _told("round", number, state.rounds.last_number)
    step = _step_of(message)
    is_current = getattr(message, "training", state.training.number) == state.training.number
    if is_current and step > state.training.newest_step + MOST_STEPS_AHEAD:
        newest = _newest_step(state)
        if newest is not None and step > newest + MOST_STEPS_AHEAD:
            return _told("step", step, newest)
    return _impossible_reading(state, message)


def _newest_step(state: State) -> int | None:
    """Returns the newest known step; None if workers may stand at any step."""
    training = state.training
    if state.rounds.running is None and not training.newest_step:
        return None  # the first round of a training may begin at the step of a checkpoint
    holders = (w for w in state.workers.values() if w.seniority is not None)
    steps = [w.step for w in holders if w.training == training.number and (w.point or w.entry)]
    # A master that has taken over must first hear how far the workers have come without it.
    return max(training.newest_step, *steps) if steps else None


def _step_of(message: messages.Message) -> int:
    if isinstance(message, protocol.Record):
        return events.step_of(message.entry) or 0
    return int(getattr(message, "step", 0))


def _impossible_reading(state: State, message: messages.Message) -> str:
    told, known = getattr(message, "reading", None), state.training.reading
    if told is None or known is None or told.training != known.training:
        return ""
    if told.progress > known.progress + MOST_STEPS_AHEAD:
        return _told("progress", told.progress, known.progress)
    return ""


def _told(what: str, told: int, known: int) -> str:
    return f"The message names {what} {told}, but this job is only at {what} {known}."
