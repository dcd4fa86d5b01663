"""One request of an agent: who asks, in which dialect, and the response, whole or as it grows."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Protocol

import msgspec
from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ajet_core.errors import AjetError, RequestError
from ajet_server.episodes.book import OpenState
from ajet_server.gateway.dialects.fields import in_words_of
from ajet_server.gateway.request import Answer, ChatRequest, Item
from ajet_server.gateway.runs import Run
from ajet_server.gateway.service import Gateway
from ajet_server.gateway.session import Origin
from ajet_server.routes.access import episode_of, refuse_web_page, server_of
from ajet_server.routes.bodies import Bodies
from ajet_server.routes.disconnect import CLIENT_GONE, disconnected, unless_disconnected
from ajet_server.routes.limits import read_body

_RETRY_COUNT = "x-stainless-retry-count"
"""Header of the official SDKs of OpenAI and Anthropic, and of all that build on them."""
_CONVERSATIONS = {"responses": "input"}
"""The field that holds the conversation, by dialect; in others it is `messages`."""
_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Parsed(Protocol):
    """A body that was understood, whatever its dialect."""

    @property
    def request(self) -> ChatRequest: ...

    @property
    def stream(self) -> bool: ...


class Dialect(Protocol):
    """What the modules of `gateway.dialects` offer."""

    @property
    def NAMES(self) -> Mapping[str, str]: ...  # noqa: N802 - a constant of the modules

    def answer(self, parsed: Any, answer: Answer, /) -> dict[str, Any]: ...

    def events(self, parsed: Any, items: AsyncIterator[Item], /) -> AsyncIterator[bytes]: ...

    def failure(self, error: AjetError, /) -> bytes: ...


class Asked(msgspec.Struct, frozen=True):
    """A request of an open episode.

    Attributes:
        request: as it came.
        gateway: that answers.
        state: the episode.
        body: JSON, not looked at yet.
        origin: how it came.
    """

    request: Request
    gateway: Gateway
    state: OpenState
    body: object
    origin: Origin


async def read(request: Request, dialect: str) -> Asked:
    """Checks who asks, and reads the body.

    Raises:
        ForbiddenError: a web page asks.
        KeyRefusedError, EpisodeClosedError: the key is not that of an open episode.
        RequestError: the body is not JSON.
        HTTPException, ClientDisconnect: it is too long, or not whole.
    """
    server = await server_of(request)
    headers = dict(reversed(request.headers.items()))  # of those that come twice, the first counts
    refuse_web_page(headers, server)
    state, role = episode_of(headers, server)
    body = await read_body(request, server.settings.max_request_bytes)
    bodies: Bodies = request.app.state.bodies
    asker = dialect if role is None else f"{dialect}.{role}"
    try:
        raw, digest = bodies.read(state.record.id, asker, _CONVERSATIONS.get(dialect, "messages"), body)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    origin = Origin(dialect, digest, retry=headers.get(_RETRY_COUNT, "0") != "0", role=role)
    return Asked(request, server.runtime.gateway, state, raw, origin)


async def respond(asked: Asked, dialect: Dialect, parsed: Parsed) -> Response:
    """Answers a parsed body."""
    try:
        run = await asked.gateway.run(asked.state, parsed.request, asked.origin, stream=parsed.stream)
        answering = _stream if parsed.stream else _whole
        return await answering(asked, dialect, parsed, run)
    except AjetError as error:
        raise in_words_of(dialect.NAMES, error) from error


def as_json(body: object) -> Response:
    """A response of JSON."""
    return Response(msgspec.json.encode(body), media_type="application/json")


class _Told(Response):
    """A response that tells when it was sent to the end."""

    media_type = "application/json"

    def __init__(self, content: bytes, sent: Callable[[], None]) -> None:
        super().__init__(content)
        self._sent = sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, send)
        self._sent()


async def _whole(asked: Asked, dialect: Dialect, parsed: Parsed, run: Run) -> Response:
    answer = await run.answer(disconnected(asked.request))
    if answer is None:
        return Response(status_code=CLIENT_GONE)
    body = msgspec.json.encode(dialect.answer(parsed, answer))
    return _Told(body, lambda: asked.gateway.delivered(asked.state, answer))


async def _stream(asked: Asked, dialect: Dialect, parsed: Parsed, run: Run) -> Response:
    """Begins the response with the first event, so that a request that fails before it has a status of its own."""
    events = _events(asked, dialect, parsed, run)
    first = await unless_disconnected(asked.request, anext(events))
    if first is None:
        return Response(status_code=CLIENT_GONE)
    return StreamingResponse(_after(first, events, dialect), media_type="text/event-stream", headers=_STREAM_HEADERS)


async def _events(asked: Asked, dialect: Dialect, parsed: Parsed, run: Run) -> AsyncGenerator[bytes]:
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
        asked.gateway.delivered(asked.state, answer)


async def _after(first: bytes, events: AsyncGenerator[bytes], dialect: Dialect) -> AsyncGenerator[bytes]:
    async with aclosing(events):
        yield first
        try:
            async for event in events:
                yield event
        except AjetError as error:
            yield dialect.failure(in_words_of(dialect.NAMES, error))
