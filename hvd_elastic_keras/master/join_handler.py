"""Answers requests of workers that join by themselves, and requests for more or fewer workers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from hvd_elastic_keras.common import control, files, messages
from hvd_elastic_keras.common.control import (
    ExitReply,
    ExitRequest,
    JobDescription,
    JoinReply,
    JoinRequest,
    Outcome,
)
from hvd_elastic_keras.launchers.base import WorkerExit
from hvd_elastic_keras.launchers.by_host import JoinedWorkers
from hvd_elastic_keras.master.context import MasterContext
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.change_request import plan_change, plan_slots
from hvd_elastic_keras.master.machine.decisions import Answer
from hvd_elastic_keras.master.machine.slots import outcome_of, place_for

MOST_LOG_CHARACTERS = 20_000
_OUTCOMES = {
    act.Outcome.FINISHED: Outcome.FINISHED,
    act.Outcome.STOPPED: Outcome.LEFT,
    act.Outcome.REFUSED: Outcome.REFUSED,
    act.Outcome.FAILED: Outcome.FAILED,
}

KEPT_ANSWERS = 32
"""Number of newest answers kept. Each line of the journal holds all of them."""


class JoinHandler:
    """Answers joiners, by the rules of `machine.slots`.

    Attributes:
      description: the description of the job that joiners need.
      joined: the workers that have joined.
      end: how the job has ended; None before its end.
    """

    def __init__(self, master: MasterContext, description: JobDescription | None) -> None:
        self.description = description or JobDescription()
        self.joined = JoinedWorkers()
        self._master = master
        self._hosts: dict[str, str] = {}
        """The host of each worker that has joined."""
        self._ids: dict[str, str] = {}
        """Worker ids, by the key of the request to join."""
        self._blind: set[str] = set()
        """Hosts that do not see the job directory, and that people have been warned of."""
        self.end: act.EndJob | None = None

    def adopt(self, worker_id: str, host: str) -> None:
        """Watches a worker that has joined, now or under an earlier launcher."""
        self._hosts[worker_id] = host
        self.joined.watch(worker_id, self._master.on_exit)

    def tell_of_those_left(self, awaited: Iterable[str]) -> None:
        """Warns, at the end of a job, of `awaited` workers that nobody has reported as ended."""
        left = [w for w in awaited if not self.joined.has_ended(w)]
        if left:
            where = ", ".join(f"{w} on {self._hosts[w]}" for w in left)
            self._master.console.line(
                "warning: the job ends, but it is not known that these workers have ended: "
                f"{where}. The host is out of reach, or the worker takes long to leave: check "
                "there whether it still runs"
            )

    def join(self, request: JoinRequest) -> JoinReply:
        """Gives a joiner a worker id, or says why it gets none."""
        if self._master.state.stop:
            return JoinReply(over=True)
        worker_id: str | JoinReply = self._ids.get(request.key, "")
        if worker_id not in self._master.state.workers:  # unknown, or gone meanwhile
            worker_id = self._place(request)
        if isinstance(worker_id, JoinReply):
            return worker_id
        self._ids[request.key] = worker_id
        self._tell_blind(request)
        worker = self._master.state.workers[worker_id]
        if self._master.config.own_machines and not worker.by_itself:
            return JoinReply(worker_id=worker_id)
        host, slot = worker.host, worker.slot
        there = sum(worker.host == host for worker in self._master.state.workers.values())
        slots = self._master.state.slots.get(host, 0)
        return JoinReply(worker_id=worker_id, workers_here=max(there, slots, 1), slot=slot)

    def _place(self, request: JoinRequest) -> str | JoinReply:
        worker_id, refused = place_for(self._master.config, self._master.state, request)
        if refused:
            return JoinReply(refused=refused)
        self.adopt(worker_id, request.host)
        if worker_id not in self._master.state.workers:
            self._master.dispatch(act.Registered(worker_id, request.host))
        return worker_id

    def ended(self, request: ExitRequest) -> ExitReply:
        """Notes the end of a worker's process; returns what that end means for the job."""
        worker_id, code = request.worker_id, request.return_code
        if worker_id not in self.joined.running():
            self.joined.exited(WorkerExit(worker_id, code))
            # If the whole job stops, the joiner need not join again.
            return ExitReply(outcome=Outcome.LEFT if self._master.state.stop else Outcome.EXPELLED)
        if code:
            self._keep_log(worker_id, request.log_tail)
        outcome = outcome_of(self._master.state, worker_id, code)
        self.joined.exited(WorkerExit(worker_id, code))
        if self.end and outcome is not Outcome.EXPELLED:
            outcome = _OUTCOMES[self.end.outcome]
        return ExitReply(outcome=outcome)

    def _keep_log(self, worker_id: str, tail: str) -> None:
        log = self._master.job_dir / files.LOGS / f"{worker_id}.log"
        with contextlib.suppress(OSError):
            if not log.exists() or not log.stat().st_size:
                log.write_text(tail[-MOST_LOG_CHARACTERS:])

    def _tell_blind(self, request: JoinRequest) -> None:
        if request.sees_job_dir or request.host in self._blind:
            return
        self._blind.add(request.host)
        self._master.console.line(
            f"warning: {request.host} does not see {self._master.job_dir}. What a rank 0 there "
            "saves (results, and checkpoints unless --checkpoint_dir is given) stays on its disk. "
            "Use a --job_dir that all hosts share, or --checkpoint_dir."
        )


class ChangeHandler:
    """Accepts or refuses changes, by the rules of `machine.change_request`.

    Attributes:
      answers: the answers to accepted requests that have a `command_id`, by this id. The newest
        answer is the last one.
    """

    def __init__(self, master: MasterContext) -> None:
        self._master = master
        self.answers: dict[str, Answer] = {}

    def restore(self, answers: Mapping[str, Answer]) -> None:
        """Takes over the answers of another master."""
        self.answers = dict(answers)

    def change_workers(self, request: control.ChangeRequest) -> control.ChangeReply:
        """Adds or removes workers, or says why not."""
        answer, asked = self._answer_before(request)
        if isinstance(answer, str):
            return control.ChangeReply(accepted=False, text=answer)
        if answer is None:
            change = plan_change(self._master.config, self._master.state, request)
            if isinstance(change, str):
                return control.ChangeReply(accepted=False, text=change)
            answer = Answer(text=change.text, asked=asked)
            self._carry_out(request.command_id, answer, *change.events)
        return control.ChangeReply(accepted=True, text=answer.text)

    def change_slots(self, request: control.SlotsRequest) -> control.SlotsReply:
        """Grants or revokes slots, or says why not."""
        answer, asked = self._answer_before(request)
        if isinstance(answer, str):
            return control.SlotsReply(accepted=False, text=answer)
        if answer is None:
            change = plan_slots(self._master.config, self._master.state, request)
            if isinstance(change, str):
                return control.SlotsReply(accepted=False, text=change)
            answer = Answer(text=change.text, workers=change.workers, asked=asked)
            self._carry_out(request.command_id, answer, change.event)
        return control.SlotsReply(accepted=True, text=answer.text, workers=answer.workers)

    def _answer_before(
        self, request: control.ChangeRequest | control.SlotsRequest
    ) -> tuple[Answer | str | None, str]:
        """Returns the answer that a request has had before, or why its id is refused; its text."""
        answer, asked = self.answers.get(request.command_id), messages.encode(request).decode()
        if answer is not None and answer.asked not in ("", asked):
            return (
                f"command_id {request.command_id!r} was given with another request before. The "
                "same id is for sending a request again; give each new one an id of its own."
            ), asked
        return answer, asked

    def _carry_out(self, command_id: str, answer: Answer, *events: act.Event) -> None:
        # The journal records the answer together with the decisions.
        if command_id:
            self.answers[command_id] = answer
        if len(self.answers) > KEPT_ANSWERS:
            del self.answers[next(iter(self.answers))]
        self._master.dispatch_command(*events)
