"""Many tasks wait for the state to change. One call wakes all of them."""

from __future__ import annotations

import asyncio

from hvd_elastic_keras.master.context import ChangeSignal

LIMIT_S = 60.0


def test_all_who_wait_are_woken_within_a_few_turns_of_the_event_loop() -> None:
    async def scenario() -> None:
        news, version = ChangeSignal(), [1]
        waiting = [
            asyncio.create_task(news.wait_for_newer(lambda: version[0], 1, LIMIT_S))
            for _ in range(1000)
        ]
        await asyncio.sleep(0)
        version[0] = 2
        news.tell()
        for _ in range(5):
            await asyncio.sleep(0)
        assert all(task.done() for task in waiting)

    asyncio.run(scenario())


def test_who_gives_up_takes_nobody_along_and_old_news_wake_nobody() -> None:
    async def scenario() -> None:
        news, version = ChangeSignal(), [1]
        gone, stays = (
            asyncio.create_task(news.wait_for_newer(lambda: version[0], 1, LIMIT_S))
            for _ in range(2)
        )
        await asyncio.sleep(0)
        gone.cancel()
        news.tell()  # about another change
        for _ in range(5):
            await asyncio.sleep(0)
        assert gone.cancelled()
        assert not stays.done()
        version[0] = 2
        news.tell()
        await asyncio.wait_for(stays, LIMIT_S)

    asyncio.run(scenario())


def test_a_wait_ends_when_its_time_is_over_and_at_once_if_the_news_are_there() -> None:
    async def scenario() -> None:
        news = ChangeSignal()
        await asyncio.wait_for(news.wait_for_newer(lambda: 1, 1, 0.0), LIMIT_S)
        await asyncio.wait_for(news.wait_for_newer(lambda: 2, 1, 1e9), LIMIT_S)

    asyncio.run(scenario())
