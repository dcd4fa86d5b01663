"""One connection: how long a request may take to come, how long its head may be, and answers in one packet.

uvicorn bounds neither: whoever sends a byte a minute would hold a connection for ever, and a head without an end fills
the memory. And it writes the head and the body of an answer apart.
"""

import asyncio
from typing import cast

from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ajet_server.joined_writes import JoinedWrites

# Bytes of a body that may come before somebody reads it; uvicorn has no setting for it. At its 64 kB every long
# conversation would be stopped halfway and begun again, which takes longer than to read it.
httptools_impl.HIGH_WATER_LIMIT = 1 << 20  # pyright: ignore[reportPrivateImportUsage]

MAX_HEAD_BYTES = 65_536
"""Of the request line and the headers."""
_TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class BoundedProtocol(HttpToolsProtocol):
    """Closes a connection whose request does not come to its end in time.

    Attributes:
        patience_s: from the beginning of the connection, or of a request, to the last byte of its body, seconds. A
            request that is sent ahead of the answer to the one before has more time, for its turn comes after that.
    """

    patience_s = 60.0
    _timer: asyncio.TimerHandle | None = None
    _in_request = False
    _in_head = False
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Begins to wait for a request."""
        super().connection_made(JoinedWrites(transport, self.loop))  # pyright: ignore[reportArgumentType]
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits for nothing any more."""
        self._cease()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Reads on, and refuses a head that has no end. Data in which a head begins or ends is not counted."""
        within = self._in_head
        super().data_received(data)
        if self._in_request and self._timer is None:  # most requests come whole, and need none
            self._wait()
        if within and self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self.transport.write(_TOO_LONG)
                self.transport.close()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._in_request, self._in_head, self._head_bytes = True, True, 0
        self._cease()

    def on_headers_complete(self) -> None:
        """Its head is there."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """All of it is there."""
        self._in_request = False
        self._cease()
        super().on_message_complete()

    def _wait(self) -> None:
        self._cease()
        self._timer = self.loop.call_later(self.patience_s, self._lose_patience)

    def _lose_patience(self) -> None:
        before = cast("RequestResponseCycle | None", self.cycle)  # uvicorn has None there until the first request
        if self.pipeline or (self._in_head and before is not None and not before.response_complete):
            self._wait()
        else:
            self.transport.close()

    def _cease(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
