"""`/v1`: what agents call."""

import asyncio
from typing import Annotated, Any

from ajet_core.errors import RequestError
from fastapi import APIRouter, Depends, Request

from ajet_server.episodes.lifecycle import OpenState
from ajet_server.gateway.dialects import chat
from ajet_server.routes.access import ServerDep, refuse_foreign_origin, require_any_episode, require_episode

router = APIRouter(prefix="/v1", tags=["agents"], dependencies=[Depends(refuse_foreign_origin)])
EpisodeDep = Annotated[OpenState, Depends(require_episode)]

_DISCONNECT_POLL_S = 0.5


@router.get("/models", dependencies=[Depends(require_any_episode)])
async def models(server: ServerDep) -> dict[str, Any]:
    """Lists the one model that is served."""
    return {"object": "list", "data": [_model(server.runtime.gateway.served_name)]}


@router.post("/chat/completions")
async def chat_completions(request: Request, state: EpisodeDep, server: ServerDep) -> dict[str, Any]:
    """Continues a conversation."""
    asked = chat.parse(await _json(request))
    call = asyncio.create_task(server.runtime.gateway.chat(state, asked))
    gone = asyncio.create_task(_until_disconnected(request))
    try:
        await asyncio.wait({call, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not call.done():
            call.cancel()  # frees the engine's slot: nobody waits for the answer
        return chat.answer(asked, await call)
    finally:
        gone.cancel()


async def _json(request: Request) -> object:
    try:
        return await request.json()
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error


async def _until_disconnected(request: Request) -> None:
    while not await request.is_disconnected():
        await asyncio.sleep(_DISCONNECT_POLL_S)


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "ajet"}
