"""What a client asked for ends when it leaves."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Literal, TypeVar

from fastapi import Request

from ajet_server.gateway.waiting import unless

T = TypeVar("T")

CLIENT_GONE = 499
"""Status of an answer that nobody reads but a log."""


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Awaits `work`, or cancels it and returns None when the client has left. The body must have been read."""
    watch = asyncio.create_task(disconnected(request))
    try:
        return await unless(watch, work)
    finally:
        watch.cancel()


async def disconnected(request: Request) -> Literal[True]:
    """Waits until the client has left. The body must have been read."""
    # After the body, the next thing that a server tells of a request is that its client has left.
    while (await request.receive())["type"] != "http.disconnect":
        continue
    return True
