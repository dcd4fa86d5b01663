"""`/v1`: what agents call."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from ajet_core.errors import NotFoundError, RequestError
from ajet_server.episodes.book import OpenState
from ajet_server.gateway.dialects import chat
from ajet_server.routes.access import ServerDep, refuse_web_pages, require_any_episode, require_episode
from ajet_server.routes.disconnect import CLIENT_GONE, unless_disconnected

router = APIRouter(prefix="/v1", tags=["agents"], dependencies=[Depends(refuse_web_pages)])
EpisodeDep = Annotated[OpenState, Depends(require_episode)]


@router.get("/models", dependencies=[Depends(require_any_episode)])
async def models(server: ServerDep) -> dict[str, Any]:
    """Lists the one model that is served."""
    return {"object": "list", "data": [_model(server.runtime.gateway.served_name)]}


@router.get("/models/{name:path}", dependencies=[Depends(require_any_episode)])
async def model(name: str, server: ServerDep) -> dict[str, Any]:
    """Describes the model that is served."""
    served = server.runtime.gateway.served_name
    if name != served:
        raise NotFoundError(f"model: {name!r} is not served here; send {served!r}", field="model")
    return _model(served)


@router.post("/chat/completions")
async def chat_completions(request: Request, state: EpisodeDep, server: ServerDep) -> Response:
    """Continues a conversation."""
    asked = chat.parse(await _json(request))
    result = await unless_disconnected(request, server.runtime.gateway.chat(state, asked))
    return Response(status_code=CLIENT_GONE) if result is None else JSONResponse(chat.answer(asked, result))


async def _json(request: Request) -> object:
    try:
        return await request.json()
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "ajet"}
