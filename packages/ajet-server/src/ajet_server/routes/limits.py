"""Refuses a body by the length that it announces, in the shape that the caller expects.

Starlette counts the bytes of a body that comes in chunks, and would answer the others in plain text.
"""

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from ajet_server.routes.errors import http_error_response

_DIGITS = 19


def too_long(max_bytes: int) -> HTTPException:
    """The refusal of a body."""
    return HTTPException(413, f"the body is longer than {max_bytes} bytes")


class AnnouncedLengthMiddleware:
    """Answers 413 before a byte of the body is read."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._is_too_long(Headers(scope=scope).get("content-length", "")):
            response = http_error_response(Request(scope), too_long(self._max_bytes))
            await response(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _is_too_long(self, length: str) -> bool:
        return length.isdigit() and (len(length) > _DIGITS or int(length) > self._max_bytes)
