"""Agents' calls on a shorter way than all other requests: the layers in between were a tenth of a short call."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from fastapi import Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ajet_core.errors import AjetError
from ajet_server.routes.errors import response_to
from ajet_server.routes.limits import too_long

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


class DirectMiddleware:
    """Hands a POST to the endpoint of its path, and everything else to the app.

    What is raised is answered as it is by the app, and so is a body that is too long.

    Args:
        app: for everything else, mistakes of ours included.
        endpoints: by path.
        max_bytes: of a body.
    """

    def __init__(self, app: ASGIApp, endpoints: Mapping[str, Endpoint], max_bytes: int) -> None:
        self._app = app
        self._endpoints = endpoints
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            endpoint = self._endpoints.get(scope["path"])
            if endpoint is not None:
                request = Request(scope, self._bounded(receive))
                response = await _answered(endpoint, request)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _bounded(self, receive: Receive) -> Receive:
        received = 0

        async def bounded() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise too_long(self._max_bytes)
            return message

        return bounded


async def _answered(endpoint: Endpoint, request: Request) -> Response:
    try:
        return await endpoint(request)
    except (AjetError, HTTPException, ClientDisconnect) as error:
        return response_to(request, error)
