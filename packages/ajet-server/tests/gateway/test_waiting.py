"""Work ends when what it is for has ended."""

import asyncio

import pytest

from ajet_server.gateway.waiting import unless

pytestmark = pytest.mark.anyio


async def test_work_that_is_done_first() -> None:
    never, before = asyncio.Event(), asyncio.all_tasks()
    assert await unless(never.wait(), asyncio.sleep(0, "done")) == "done"
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before, "nothing goes on waiting"


async def test_the_event_cancels_the_work() -> None:
    event, ended = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        try:
            await asyncio.Event().wait()
            return "done"
        finally:
            ended.set()

    asyncio.get_running_loop().call_soon(event.set)
    assert await unless(event.wait(), work()) is None
    assert ended.is_set()
    await asyncio.sleep(0)  # and the task goes on


async def test_an_error_of_the_work_is_raised() -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await unless(asyncio.Event().wait(), work())


async def test_somebody_else_cancels() -> None:
    task = asyncio.create_task(unless(asyncio.Event().wait(), asyncio.Event().wait()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_an_event_that_has_happened() -> None:
    event = asyncio.Event()
    event.set()
    assert await unless(event.wait(), asyncio.Event().wait()) is None
