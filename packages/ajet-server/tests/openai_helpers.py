"""Answers, streams of them, and the OpenAI SDK that reads the bytes."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from types import ModuleType
from typing import Any

import httpx2
from openai import OpenAI

from ajet_server.gateway.dialects.sse import Item, Started
from ajet_server.gateway.request import Answer, Choice, Delta, TokenLogprob

HEAD: dict[str, Any] = {"id": "call_1", "created": 7, "model": "m", "prompt_tokens": 3, "prompt_ids": [5, 6, 7]}
STARTED = Started(**HEAD)


def logprobs_of(tokens: Sequence[int]) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(token, f"t{token}", -1.0 * token, ((f"t{token}", -1.0 * token),)) for token in tokens)


def choice_of(deltas: Sequence[Delta], index: int = 0, **changes: Any) -> Choice:
    """The choice that deltas add up to."""
    calls = tuple(call for delta in deltas for call in delta.tool_calls)
    fields: dict[str, Any] = {
        "index": index,
        "call_id": f"call_{index + 1}",
        "text": "".join(delta.text for delta in deltas),
        "reasoning": "".join(delta.reasoning for delta in deltas),
        "tool_calls": calls,
        "malformed_tool_calls": 0,
        "finish_reason": "tool_calls" if calls else "stop",
        "stop": None,
        "token_ids": [token for delta in deltas for token in delta.tokens],
        "logprobs": tuple(entry for delta in deltas for entry in delta.logprobs),
        "reasoning_tokens": 0,
        "versions": ((0, 4),),
    }
    return Choice(**fields | changes)


def answer_of(*choices: Choice) -> Answer:
    return Answer(**HEAD, choices=choices, cached_tokens=2, weight_version=4)


def sent(dialect: ModuleType, parsed: Any, items: Iterable[Item]) -> list[bytes]:
    """The events of a stream."""

    async def feed() -> AsyncIterator[Item]:
        for item in items:
            yield item

    async def collect() -> list[bytes]:
        return [data async for data in dialect.events(parsed, feed())]

    return asyncio.run(collect())


def objects(events: Sequence[bytes]) -> list[dict[str, Any]]:
    """The JSON of each event before [DONE]."""
    assert events[-1] == b"data: [DONE]\n\n"
    return [json.loads(data.removeprefix(b"data: ")) for data in events[:-1]]


def sdk(body: bytes, *, stream: bool) -> OpenAI:
    """A client that is answered with these bytes, whatever it asks."""
    kind = "text/event-stream" if stream else "application/json"

    def respond(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=body, headers={"Content-Type": kind})

    http = httpx2.Client(transport=httpx2.MockTransport(respond))
    return OpenAI(api_key="k", base_url="http://server/v1", http_client=http, max_retries=0)


def extras(model: Any, path: str = "") -> set[str]:
    """Names of all fields that the SDK's type does not know."""
    found = {f"{path}{name}" for name in model.model_extra or {}}
    for name in type(model).model_fields:
        value = getattr(model, name)
        for item in value if isinstance(value, list) else [value]:
            if hasattr(item, "model_extra"):
                found |= extras(item, f"{path}{name}.")
    return found
