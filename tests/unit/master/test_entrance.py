"""A worker that waits for a place in a round gets the answer to its own request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from hvd_elastic_keras.common import protocol
from hvd_elastic_keras.master.worker_handler import Entrance

OVER = protocol.EnterReply(training_over=True)
LEAVE = protocol.EnterReply(leave="this is a test")
NOT_YET = protocol.EnterReply()


def request(training: int) -> protocol.EnterRequest:
    return protocol.EnterRequest(
        worker_id="w0", training=training, from_round=0, has_state=False, progress=0, step=0
    )


def nobody_decides(_: protocol.EnterRequest) -> None:
    """Does nothing: the answer comes later."""


def run(scenario: Callable[[Entrance], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(Entrance()), 60.0))


@pytest.mark.parametrize("training", [1, 0])
def test_an_answer_that_comes_between_two_requests_is_kept(training: int) -> None:
    async def scenario(entrance: Entrance) -> None:
        entrance.answer("w0", LEAVE, training)
        assert await entrance.enter(request(1), nobody_decides) == LEAVE

    run(scenario)


def test_an_answer_kept_for_one_training_is_not_given_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "LONG_POLL_S", 0.01)

    async def scenario(entrance: Entrance) -> None:
        entrance.answer("w0", OVER, 1)
        assert await entrance.enter(request(2), nobody_decides) == NOT_YET

    run(scenario)


def test_an_answer_for_one_training_does_not_reach_who_waits_in_the_next() -> None:
    async def scenario(entrance: Entrance) -> None:
        def decide(_: protocol.EnterRequest) -> None:
            entrance.answer("w0", OVER, 1)
            entrance.answer("w0", LEAVE, 2)

        assert await entrance.enter(request(2), decide) == LEAVE

    run(scenario)


def test_who_is_gone_is_not_answered_when_it_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "LONG_POLL_S", 0.01)

    async def scenario(entrance: Entrance) -> None:
        entrance.answer("w0", LEAVE)
        entrance.gone("w0")
        assert await entrance.enter(request(1), nobody_decides) == NOT_YET

    run(scenario)


def test_an_answer_that_a_worker_has_got_is_not_kept_a_second_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "LONG_POLL_S", 0.01)

    async def scenario(entrance: Entrance) -> None:
        def decide(_: protocol.EnterRequest) -> None:
            entrance.answer("w0", LEAVE, 1)
            entrance.answer("w0", LEAVE, 1)  # to the same request, sent twice

        assert await entrance.enter(request(1), decide) == LEAVE
        assert await entrance.enter(request(1), nobody_decides) == NOT_YET
        entrance.answer("w0", OVER, 1)
        assert await entrance.enter(request(1), nobody_decides) == OVER

    run(scenario)
