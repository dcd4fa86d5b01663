"""`/v1`: what agents call, in four dialects."""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, Protocol

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import StreamingResponse
from starlette.background import BackgroundTask

from ajet_core.errors import AjetError, NotFoundError, RequestError
from ajet_server.episodes.book import OpenState
from ajet_server.gateway.dialects import chat, completions, messages, responses
from ajet_server.gateway.request import Answer, ChatRequest, Item
from ajet_server.gateway.runs import Run
from ajet_server.gateway.session import Origin
from ajet_server.routes.access import ServerDep, refuse_web_pages, require_any_episode, require_episode
from ajet_server.routes.disconnect import CLIENT_GONE, unless_disconnected
from ajet_server.wiring import Server

router = APIRouter(prefix="/v1", tags=["agents"], dependencies=[Depends(refuse_web_pages)])
EpisodeDep = Annotated[OpenState, Depends(require_episode)]

_RETRY_COUNT = "x-stainless-retry-count"
"""Header of the official SDKs of OpenAI and Anthropic, and of all that build on them."""


class _Asked(Protocol):
    """A parsed body, whatever its dialect."""

    @property
    def request(self) -> ChatRequest: ...

    @property
    def stream(self) -> bool: ...


class _Dialect(Protocol):
    """What the modules of `gateway.dialects` offer."""

    def answer(self, parsed: Any, answer: Answer, /) -> dict[str, Any]: ...

    def events(self, parsed: Any, items: AsyncIterator[Item], /) -> AsyncIterator[bytes]: ...

    def failure(self, error: AjetError, /) -> bytes: ...


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
    """Continues a conversation (OpenAI Chat Completions)."""
    raw, origin = await _read(request, "chat")
    return await _respond(request, server, state, chat, chat.parse(raw), origin)


@router.post("/completions")
async def legacy_completions(request: Request, state: EpisodeDep, server: ServerDep) -> Response:
    """Continues a prompt of text or token ids (OpenAI Completions)."""
    raw, origin = await _read(request, "completions")
    return await _respond(request, server, state, completions, completions.parse(raw), origin)


@router.post("/responses")
async def create_response(request: Request, state: EpisodeDep, server: ServerDep) -> Response:
    """Continues a conversation, one that the server remembers too (OpenAI Responses)."""
    raw, origin = await _read(request, "responses")
    gateway = server.runtime.gateway
    parsed = responses.parse(raw, lambda answer_id: gateway.recall(state, answer_id))
    return await _respond(request, server, state, responses, parsed, origin)


@router.post("/messages")
async def create_message(request: Request, state: EpisodeDep, server: ServerDep) -> Response:
    """Continues a conversation (Anthropic Messages)."""
    raw, origin = await _read(request, "messages")
    return await _respond(
        request, server, state, messages, messages.parse(raw, thinks=server.runtime.gateway.thinks), origin
    )


@router.post("/messages/count_tokens")
async def count_tokens(request: Request, state: EpisodeDep, server: ServerDep) -> dict[str, int]:
    """Says how long a prompt would be (Anthropic Messages)."""
    raw, _ = await _read(request, "messages")
    asked = messages.parse_count(raw, thinks=server.runtime.gateway.thinks)
    return messages.count(await server.runtime.gateway.count_tokens(state, asked))


async def _read(request: Request, dialect: str) -> tuple[object, Origin]:
    """The body as JSON, and where it came from."""
    body = await request.body()
    try:
        raw = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    digest = hashlib.sha256(dialect.encode() + b"\0" + body).digest()
    retry = request.headers.get(_RETRY_COUNT, "0") != "0"
    return raw, Origin(dialect, digest, retry)


async def _respond(
    request: Request, server: Server, state: OpenState, dialect: _Dialect, parsed: _Asked, origin: Origin
) -> Response:
    gateway = server.runtime.gateway
    run = await gateway.run(state, parsed.request, origin, stream=parsed.stream)
    if parsed.stream:
        return await _stream(request, server, state, dialect, parsed, run)
    answer = await unless_disconnected(request, run.answer())
    if answer is None:
        return Response(status_code=CLIENT_GONE)
    body = msgspec.json.encode(dialect.answer(parsed, answer))
    sent = BackgroundTask(gateway.delivered, state, answer)
    return Response(body, media_type="application/json", background=sent)


async def _stream(
    request: Request, server: Server, state: OpenState, dialect: _Dialect, parsed: _Asked, run: Run
) -> Response:
    """Begins the response with the first event, so that a request that fails before it has a status of its own."""
    events = _events(server, state, dialect, parsed, run)
    first = await unless_disconnected(request, anext(events))
    if first is None:
        return Response(status_code=CLIENT_GONE)
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(_after(first, events, dialect), media_type="text/event-stream", headers=headers)


async def _events(
    server: Server, state: OpenState, dialect: _Dialect, parsed: _Asked, run: Run
) -> AsyncGenerator[bytes]:
    answers: list[Answer] = []

    async def watched(items: AsyncIterator[Item]) -> AsyncGenerator[Item]:
        async for item in items:
            if isinstance(item, Answer):
                answers.append(item)
            yield item

    async with aclosing(run.items()) as items:
        async for event in dialect.events(parsed, watched(items)):
            yield event
    for answer in answers:
        server.runtime.gateway.delivered(state, answer)


async def _after(first: bytes, events: AsyncGenerator[bytes], dialect: _Dialect) -> AsyncGenerator[bytes]:
    async with aclosing(events):
        yield first
        try:
            async for event in events:
                yield event
        except AjetError as error:
            yield dialect.failure(error)


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "ajet"}
