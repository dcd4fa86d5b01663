"""`/v1`: what agents call."""

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from ajet_core.errors import RequestError
from ajet_server.episodes.book import OpenState
from ajet_server.gateway.dialects import chat
from ajet_server.gateway.request import ChatResult
from ajet_server.routes.access import ServerDep, refuse_foreign_origin, require_any_episode, require_episode

router = APIRouter(prefix="/v1", tags=["agents"], dependencies=[Depends(refuse_foreign_origin)])
EpisodeDep = Annotated[OpenState, Depends(require_episode)]

_DISCONNECT_POLL_S = 0.5
_CLIENT_GONE = 499
"""Nobody reads it but a log."""


@router.get("/models", dependencies=[Depends(require_any_episode)])
async def models(server: ServerDep) -> dict[str, Any]:
    """Lists the one model that is served."""
    return {"object": "list", "data": [_model(server.runtime.gateway.served_name)]}


@router.post("/chat/completions")
async def chat_completions(request: Request, state: EpisodeDep, server: ServerDep) -> Response:
    """Continues a conversation."""
    asked = chat.parse(await _json(request))
    result = await _unless_disconnected(request, server.runtime.gateway.chat(state, asked))
    return Response(status_code=_CLIENT_GONE) if result is None else JSONResponse(chat.answer(asked, result))


async def _unless_disconnected(request: Request, work: Coroutine[Any, Any, ChatResult]) -> ChatResult | None:
    """Awaits a call, or cancels it, which frees the engine's slot, when nobody waits for the answer any more."""
    call = asyncio.create_task(work)
    gone = asyncio.create_task(_until_disconnected(request))
    try:
        await asyncio.wait({call, gone}, return_when=asyncio.FIRST_COMPLETED)
        return await call if call.done() else None
    finally:
        call.cancel()
        gone.cancel()
        await asyncio.gather(call, gone, return_exceptions=True)


async def _json(request: Request) -> object:
    try:
        return await request.json()
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error


async def _until_disconnected(request: Request) -> None:
    while not await request.is_disconnected():  # noqa: ASYNC110 - ASGI has no event for it
        await asyncio.sleep(_DISCONNECT_POLL_S)


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "ajet"}
