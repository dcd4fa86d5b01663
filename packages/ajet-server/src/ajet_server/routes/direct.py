"""Agents' calls on a shorter way than all other requests: the layers in between were a tenth of a short call."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from ajet_core.errors import AjetError
from ajet_server.routes.errors import bug_response, response_to
from ajet_server.routes.limits import head_refusal

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


class DirectApp(FastAPI):
    """An app that hands a POST to the endpoint of its path, if it is one of `direct`, past all its middleware.

    What such an endpoint raises is answered as everywhere else. It bounds its body by itself (see `read_body`).
    """

    direct: Mapping[str, Endpoint] = {}
    """By path."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            endpoint = self.direct.get(scope["path"])
            if endpoint is not None:
                scope["app"] = self
                await _answer(endpoint, Request(scope, receive), send)
                return
        await super().__call__(scope, receive, send)


async def _answer(endpoint: Endpoint, request: Request, send: Send) -> None:
    try:
        if refusal := head_refusal(request.scope):
            raise refusal
        response = await endpoint(request)
    except (AjetError, HTTPException, ClientDisconnect) as error:
        response = response_to(request, error)
    except Exception as error:
        await bug_response(request, error)(request.scope, request.receive, send)
        raise  # so that the log has it
    await response(request.scope, request.receive, send)
