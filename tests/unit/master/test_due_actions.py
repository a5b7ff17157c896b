"""Decisions of many events are written down together, before any of them is carried out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from hvd_elastic_keras.master.due_actions import DueActions
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.state import State, Training

LIMIT_S = 60.0
BEFORE = State()
DECIDED = State(version=2)
OBSERVED = State(training=Training(newest_step=3))


class Desk:
    """Notes the order in which things happen."""

    def __init__(self, error: Exception | None = None, fails: str = "") -> None:
        self.happened: list[str] = []
        self._error = error
        self._fails = fails
        self.due = DueActions(self._keep, self._execute, lambda: self.happened.append("news"))

    def _keep(self) -> None:
        self.happened.append("kept")
        if self._error:
            raise self._error

    def _execute(self, action: act.Action) -> None:
        assert isinstance(action, act.Say)
        self.happened.append(action.text)
        if action.text == self._fails:
            raise OSError("this action fails")


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(scenario(), LIMIT_S)

    asyncio.run(limited())


def test_many_decisions_of_a_moment_are_kept_once_and_then_carried_out_in_order() -> None:
    async def scenario() -> None:
        desk = Desk()
        for number in range(50):
            desk.due.add(BEFORE, DECIDED, [act.Say(str(number))])
        assert desk.happened == []
        await desk.due.kept()
        assert desk.happened == ["kept", *map(str, range(50)), "news"]
        desk.due.add(BEFORE, DECIDED, [act.Say("later")])
        await desk.due.kept()
        assert desk.happened[-3:] == ["kept", "later", "news"]

    run(scenario)


def test_what_is_only_observed_is_neither_kept_nor_waited_for() -> None:
    async def scenario() -> None:
        desk = Desk()
        desk.due.add(BEFORE, OBSERVED, [])
        await desk.due.kept()
        assert desk.happened == []
        desk.due.add(BEFORE, OBSERVED, [act.Say("a line")])
        await desk.due.kept()
        assert desk.happened == ["a line"]

    run(scenario)


def test_who_waits_goes_on_even_if_the_journal_fails(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        desk = Desk(error=RuntimeError("this is a test"))
        desk.due.add(BEFORE, DECIDED, [act.Say("nonetheless")])
        await desk.due.kept()
        assert desk.happened == ["kept", "nonetheless", "news"]

    run(scenario)
    assert "this is a test" in caplog.text


def test_an_action_that_fails_keeps_none_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        desk = Desk(fails="b")
        desk.due.add(BEFORE, DECIDED, [act.Say(text) for text in "abc"])
        await desk.due.kept()
        assert desk.happened == ["kept", "a", "b", "c", "news"]
        desk.due.execute([act.Say(text) for text in "bd"])
        assert desk.happened[-2:] == ["b", "d"]

    run(scenario)
    assert caplog.text.count("OSError: this action fails") == 2


def test_at_the_end_what_was_decided_is_carried_out_and_nothing_after_it() -> None:
    async def scenario() -> None:
        desk = Desk()
        desk.due.add(BEFORE, DECIDED, [act.Say("first")])
        await desk.due.kept()
        desk.due.add(BEFORE, DECIDED, [act.Say("the last")])
        waits = asyncio.create_task(desk.due.kept())
        desk.due.end()
        everything = ["kept", "first", "news", "kept", "the last", "news"]
        assert desk.happened == everything
        desk.due.add(BEFORE, DECIDED, [act.Say("too late")])
        desk.due.add_decision()
        await desk.due.kept()
        await waits
        await asyncio.sleep(0)  # lets calls scheduled earlier run
        assert desk.happened == everything

    run(scenario)
