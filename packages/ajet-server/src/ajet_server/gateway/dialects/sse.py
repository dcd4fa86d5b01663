"""Server-sent events: their bytes."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from ajet_server.gateway.request import Item, Started

DONE = b"data: [DONE]\n\n"
"""The end of a stream of OpenAI's older dialects."""


def event(data: bytes | Mapping[str, Any], name: str | None = None) -> bytes:
    """Returns one event.

    Args:
        data: JSON, as bytes without line breaks or as an object. An object is written in ASCII: some clients also end
            a line at characters that JSON leaves as they are (U+2028, U+0085).
        name: of the event; dialects without names leave it out.
    """
    body = data if isinstance(data, bytes) else json.dumps(data, separators=(",", ":")).encode()
    head = b"" if name is None else f"event: {name}\n".encode()
    return b"%sdata: %s\n\n" % (head, body)


async def begun(items: AsyncIterator[Item]) -> Started:
    """Takes the first item of a stream."""
    first = await anext(items)
    if not isinstance(first, Started):
        raise TypeError(f"a stream begins with Started, got {type(first).__name__}")
    return first
