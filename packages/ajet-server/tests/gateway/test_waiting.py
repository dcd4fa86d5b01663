"""Work ends when what it is for has ended."""

import asyncio

import pytest

from ajet_server.gateway.waiting import unless

pytestmark = pytest.mark.anyio


async def test_work_that_is_done_first() -> None:
    event = asyncio.get_running_loop().create_future()
    assert await unless(event, asyncio.sleep(0, "done")) == "done"
    event.set_result(None)
    await asyncio.sleep(0)  # and the task goes on


async def test_the_event_cancels_the_work() -> None:
    event, ended = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def work() -> str:
        try:
            await asyncio.Event().wait()
            return "done"
        finally:
            ended.set()

    asyncio.get_running_loop().call_soon(event.set_result, None)
    assert await unless(event, work()) is None
    assert ended.is_set()
    await asyncio.sleep(0)  # and the task goes on


async def test_an_error_of_the_work_is_raised() -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await unless(asyncio.get_running_loop().create_future(), work())


async def test_somebody_else_cancels() -> None:
    task = asyncio.create_task(unless(asyncio.get_running_loop().create_future(), asyncio.Event().wait()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_an_event_that_has_happened() -> None:
    event = asyncio.get_running_loop().create_future()
    event.set_result(None)
    assert await unless(event, asyncio.Event().wait()) is None


async def test_an_event_that_happens_as_the_work_ends() -> None:
    event = asyncio.get_running_loop().create_future()

    async def work() -> str:
        event.set_result(None)
        return "done"

    assert await unless(event, work()) == "done"
    await asyncio.sleep(0)  # and the task goes on
