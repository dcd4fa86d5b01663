"""What a client asked for ends when it leaves."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from ajet_server.gateway.waiting import unless

T = TypeVar("T")

CLIENT_GONE = 499
"""Status of an answer that nobody reads but a log."""


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Awaits `work`, or cancels it and returns None when the client has left. The body must have been read."""
    return await unless(_disconnected(request), work)


async def _disconnected(request: Request) -> None:
    # After the body, the next thing that a server tells of a request is that its client has left.
    while (await request.receive())["type"] != "http.disconnect":
        continue
