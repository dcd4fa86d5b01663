"""Refuses a body by the length that it announces, and a long head, in the shape that the caller expects.

Starlette counts the bytes of a body that comes in chunks, and would answer the others in plain text.
"""

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from ajet_server.connection import MAX_HEAD_BYTES
from ajet_server.routes.errors import http_error_response

_DIGITS = 19


def too_long(max_bytes: int) -> HTTPException:
    """The refusal of a body."""
    return HTTPException(413, f"the body is longer than {max_bytes} bytes")


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Returns the whole body.

    Raises:
        HTTPException: it is too long, as it says (then not a byte of it is read) or as it turns out.
        ClientDisconnect: the client left before its end.
    """
    if _is_too_long(request.headers.get("content-length", ""), max_bytes):
        raise too_long(max_bytes)
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > max_bytes:
            raise too_long(max_bytes)
        more = message.get("more_body", False)
    return b"".join(parts)


def head_refusal(scope: Scope) -> HTTPException | None:
    """Returns a 431 for path and headers that are too long together."""
    if sum(len(name) + len(value) for name, value in scope["headers"]) + len(scope["path"]) > MAX_HEAD_BYTES:
        return HTTPException(431, f"path and headers are longer than {MAX_HEAD_BYTES} bytes")
    return None


def _is_too_long(announced: str, max_bytes: int) -> bool:
    return announced.isdigit() and (len(announced) > _DIGITS or int(announced) > max_bytes)


class AnnouncedLengthMiddleware:
    """Answers 413 or 431 before a byte of the body is read."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            response = http_error_response(Request(scope), refusal)
            await response(scope, receive, send)

    def _refusal(self, scope: Scope) -> HTTPException | None:
        announced = Headers(scope=scope).get("content-length", "")
        return head_refusal(scope) or (too_long(self._max_bytes) if _is_too_long(announced, self._max_bytes) else None)
