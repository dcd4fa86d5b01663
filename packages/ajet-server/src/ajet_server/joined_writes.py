"""Writes of one turn of the event loop as one packet: fewer system calls, here and at the other end."""

import asyncio
from typing import Any

_MOST_BYTES = 1 << 16
"""What is longer is not held back, so that slow readers are noticed."""


class JoinedWrites:
    """A transport over another one, which is given everything that was written in one turn of the loop at once."""

    def __init__(self, transport: asyncio.WriteTransport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        """Writes data at the end of this turn of the loop, or now if there is much."""
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)
        self._size += len(data)
        if self._size > _MOST_BYTES:
            self._flush()

    def close(self) -> None:
        """Closes the connection once everything is written."""
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _flush(self) -> None:
        if self._held:
            held, self._held, self._size = self._held, [], 0
            self._transport.write(b"".join(held))
