"""Answers requests for more or fewer workers or slots. A repeated request counts once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from hvd_elastic_keras.common import control
from hvd_elastic_keras.common.config import JobConfig
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.change_request import plan_change, plan_slots
from hvd_elastic_keras.master.machine.decisions import Answer
from hvd_elastic_keras.master.machine.state import State

KEPT_ANSWERS = 32
"""Number of newest answers kept. Each line of the journal holds all of them."""


class Dispatch(Protocol):
    """Applies events. The journal records the result of all of them in one entry."""

    def __call__(self, *events: act.Event) -> None: ...


class ChangeDesk:
    """Accepts or refuses changes, by the rules of `machine.change_request`.

    Args:
      state: returns the present state of the job.

    Attributes:
      answers: the answers to accepted requests that have a `command_id`, by this id. The newest
        answer is the last one.
    """

    def __init__(self, config: JobConfig, state: Callable[[], State], dispatch: Dispatch) -> None:
        self._config = config
        self._state = state
        self._dispatch = dispatch
        self.answers: dict[str, Answer] = {}

    def restore(self, answers: Mapping[str, Answer]) -> None:
        """Takes over the answers of another master."""
        self.answers = dict(answers)

    def change_workers(self, request: control.ChangeRequest) -> control.ChangeReply:
        """Adds or removes workers, or says why not."""
        answer = self.answers.get(request.command_id)
        if answer is None:
            change = plan_change(self._config, self._state(), request)
            if isinstance(change, str):
                return control.ChangeReply(accepted=False, text=change)
            answer = Answer(text=change.text)
            self._carry_out(request.command_id, answer, *change.events)
        return control.ChangeReply(accepted=True, text=answer.text)

    def change_slots(self, request: control.SlotsRequest) -> control.SlotsReply:
        """Grants or revokes slots, or says why not."""
        answer = self.answers.get(request.command_id)
        if answer is None:
            change = plan_slots(self._config, self._state(), request)
            if isinstance(change, str):
                return control.SlotsReply(accepted=False, text=change)
            answer = Answer(text=change.text, workers=change.workers)
            self._carry_out(request.command_id, answer, change.event)
        return control.SlotsReply(accepted=True, text=answer.text, workers=answer.workers)

    def _carry_out(self, command_id: str, answer: Answer, *events: act.Event) -> None:
        # The journal records the answer together with the decisions.
        if command_id:
            self.answers[command_id] = answer
        if len(self.answers) > KEPT_ANSWERS:
            del self.answers[next(iter(self.answers))]
        self._dispatch(*events)
