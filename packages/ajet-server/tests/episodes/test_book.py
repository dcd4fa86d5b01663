"""Who waits for a change hears of it, and of nothing else that would keep it waiting."""

import asyncio

import pytest

from ajet_server.episodes.book import Changes

pytestmark = pytest.mark.anyio


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("between", range(8))
async def test_a_cancellation_together_with_a_change_is_not_lost(between: int) -> None:
    changes = Changes()

    async def wait_on() -> None:
        while True:
            await changes.wait(changes.count, 60.0)

    waiter = asyncio.create_task(wait_on())
    await _turns(10)
    await changes.notify()
    await _turns(between)
    waiter.cancel()
    await _turns(10)
    assert waiter.cancelled()


async def test_a_wait_ends_with_a_change_or_with_its_time() -> None:
    changes = Changes()
    await changes.wait(changes.count, 0.0)
    waiter = asyncio.create_task(changes.wait(changes.count, 60.0))
    await _turns(10)
    assert not waiter.done()
    await changes.notify()
    await asyncio.wait_for(waiter, 10.0)
    await changes.wait(changes.count - 1, 60.0)
