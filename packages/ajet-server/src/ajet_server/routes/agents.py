"""`/v1`: what agents call, in four dialects."""

from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute

from ajet_core.errors import NotFoundError
from ajet_server.gateway.dialects import chat, completions, messages, responses
from ajet_server.routes.access import ServerDep, refuse_web_pages, require_any_episode
from ajet_server.routes.answers import as_json, read, respond
from ajet_server.routes.direct import Endpoint
from ajet_server.routes.openapi import ANSWERS, ANTHROPIC_ERRORS, OPENAI_ERRORS, asks

_HELLO = [{"role": "user", "content": "hello"}]
"""Of the examples in the documentation."""
_UNKNOWN = "1970-01-01T00:00:00Z"
"""When the model was released."""


models = APIRouter(prefix="/v1", tags=["agents"], dependencies=[Depends(refuse_web_pages)], responses=OPENAI_ERRORS)
calls = APIRouter(prefix="/v1", tags=["agents"], responses=OPENAI_ERRORS)
"""Their endpoints take the request as it is: `direct` calls them."""


@models.get("/models", dependencies=[Depends(require_any_episode)])
async def list_models(server: ServerDep) -> dict[str, Any]:
    """Lists the one model that is served, in OpenAI's form and in Anthropic's: their fields do not collide."""
    name = server.runtime.gateway.served_name
    return {"object": "list", "data": [_model(name)], "has_more": False, "first_id": name, "last_id": name}


@models.get("/models/{name:path}", dependencies=[Depends(require_any_episode)])
async def describe_model(name: str, server: ServerDep) -> dict[str, Any]:
    """Describes the model that is served."""
    served = server.runtime.gateway.served_name
    if name != served:
        raise NotFoundError(f"model: {name!r} is not served here; send {served!r}", field="model")
    return _model(served)


@calls.post(
    "/chat/completions",
    responses=ANSWERS,
    openapi_extra=asks(chat.RequestBody, model="model", messages=_HELLO, temperature=1.0, max_tokens=64),
)
async def chat_completions(request: Request) -> Response:
    """Continues a conversation (OpenAI Chat Completions)."""
    asked = await read(request, "chat")
    return await respond(asked, chat, chat.parse(asked.body))


@calls.post(
    "/completions",
    responses=ANSWERS,
    openapi_extra=asks(completions.RequestBody, model="model", prompt="hello", max_tokens=64),
)
async def legacy_completions(request: Request) -> Response:
    """Continues a prompt of text or token ids (OpenAI Completions)."""
    asked = await read(request, "completions")
    return await respond(asked, completions, completions.parse(asked.body))


@calls.post(
    "/responses",
    responses=ANSWERS,
    openapi_extra=asks(responses.RequestBody, model="model", input="hello", max_output_tokens=64),
)
async def create_response(request: Request) -> Response:
    """Continues a conversation, one that the server remembers too (OpenAI Responses)."""
    asked = await read(request, "responses")
    parsed = responses.parse(asked.body, lambda answer_id: asked.gateway.recall(asked.state, answer_id))
    return await respond(asked, responses, parsed)


@calls.post(
    "/messages",
    responses=ANSWERS | ANTHROPIC_ERRORS,
    openapi_extra=asks(messages.RequestBody, model="model", messages=_HELLO, max_tokens=64),
)
async def create_message(request: Request) -> Response:
    """Continues a conversation (Anthropic Messages)."""
    asked = await read(request, "messages")
    return await respond(asked, messages, messages.parse(asked.body, thinks=asked.gateway.thinks))


@calls.post(
    "/messages/count_tokens",
    responses=ANTHROPIC_ERRORS,
    openapi_extra=asks(messages.CountBody, model="model", messages=_HELLO),
)
async def count_tokens(request: Request) -> Response:
    """Says how long a prompt would be (Anthropic Messages)."""
    asked = await read(request, "messages")
    counted = messages.parse_count(asked.body, thinks=asked.gateway.thinks)
    return as_json(messages.count(await asked.gateway.count_tokens(asked.state, counted)))


def endpoints() -> dict[str, Endpoint]:
    """Who answers a POST, by path."""
    return {route.path: route.endpoint for route in calls.routes if isinstance(route, APIRoute)}


def _model(name: str) -> dict[str, Any]:
    openai = {"id": name, "object": "model", "created": 0, "owned_by": "ajet"}
    return openai | {"type": "model", "display_name": name, "created_at": _UNKNOWN, "lifecycle": "active"}
