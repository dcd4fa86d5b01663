"""Work that nobody waits for any more is cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

T = TypeVar("T")

CLIENT_GONE = 499
"""Status of an answer that nobody reads but a log."""


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Awaits `work`, or cancels it and returns None when the client has left. The body must have been read."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_until_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _until_disconnected(request: Request) -> None:
    # After the body, the next thing that a server tells of a request is that its client has left.
    while (await request.receive())["type"] != "http.disconnect":
        continue
