"""Several may wait for one request; it ends with the last of them."""

import asyncio
from typing import Literal

import pytest

from ajet_core.errors import UnavailableError
from ajet_server.gateway.request import Answer, Delta
from ajet_server.gateway.runs import Emit, Run

pytestmark = pytest.mark.anyio
ANSWER = Answer("a", 0, "m", (), 2, [1, 2], 0, 0)


class Work:
    """Says what it is told to."""

    def __init__(self) -> None:
        self.steps: asyncio.Queue[str | Exception | None] = asyncio.Queue()
        self.cancelled = False

    async def __call__(self, emit: Emit) -> Answer:
        try:
            while (step := await self.steps.get()) is not None:
                if isinstance(step, Exception):
                    raise step
                emit(Delta(0, text=step))
            return ANSWER
        except asyncio.CancelledError:
            self.cancelled = True
            raise


def over(run: Run) -> None:
    assert run.task.done()


async def forever() -> Literal[True]:
    await asyncio.Event().wait()
    return True


async def _texts(run: Run) -> list[str | None]:
    return [item.text if isinstance(item, Delta) else None async for item in run.items()]


async def test_everyone_gets_every_delta_and_the_answer() -> None:
    work = Work()
    run = Run(work, over)
    early = asyncio.create_task(_texts(run))
    work.steps.put_nowait("a")
    work.steps.put_nowait("b")
    while not work.steps.empty():
        await asyncio.sleep(0)
    late, whole = asyncio.create_task(_texts(run)), asyncio.create_task(run.answer(forever()))
    await asyncio.sleep(0)
    work.steps.put_nowait("c")
    work.steps.put_nowait(None)
    assert await early == await late == ["a", "b", "c", None]
    assert await whole is ANSWER
    assert await _texts(run) == ["a", "b", "c", None], "also when it is over"


async def test_it_goes_on_while_one_waits() -> None:
    work = Work()
    run = Run(work, over)
    first, second = asyncio.create_task(run.answer(forever())), asyncio.create_task(_texts(run))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    work.steps.put_nowait(None)
    assert await second == [None]
    assert not work.cancelled


async def test_the_last_who_leaves_ends_it() -> None:
    work = Work()
    run = Run(work, over)
    waiting = [asyncio.create_task(run.answer(forever())), asyncio.create_task(_texts(run))]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await asyncio.wait({run.task})
    assert work.cancelled


async def test_a_stream_that_is_closed_has_left() -> None:
    work = Work()
    run = Run(work, over)
    items = run.items()
    work.steps.put_nowait("a")
    assert await anext(items) == Delta(0, text="a")
    await items.aclose()
    await asyncio.wait({run.task})
    assert work.cancelled


async def test_everyone_hears_of_the_failure() -> None:
    work = Work()
    run = Run(work, over)
    waiting = [asyncio.create_task(run.answer(forever())), asyncio.create_task(_texts(run))]
    await asyncio.sleep(0)
    work.steps.put_nowait(UnavailableError("not now"))
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(result, UnavailableError)


async def test_who_leaves_gets_nothing() -> None:
    async def at_once() -> Literal[True]:
        return True

    work = Work()
    run = Run(work, over)
    stays = asyncio.create_task(_texts(run))
    await asyncio.sleep(0)
    assert await run.answer(at_once()) is None
    work.steps.put_nowait(None)
    assert await stays == [None]
    assert not work.cancelled
