"""A growing answer as chunks of Chat Completions.

    one chunk per choice    its role; the first carries prompt_token_ids, if they were asked for
    any number              reasoning_content, content or one whole tool call, of whichever choice grew
    one chunk per choice    its finish_reason, and weight_versions, if ids were asked for; from here on it is durable
    one chunk               usage, if it was asked for, without choices
    [DONE]

An error ends a stream without [DONE].
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any

from ajet_core.errors import AjetError
from ajet_server.gateway.dialects.chat.answer import chat_logprobs, error_body, fingerprint, usage, weight_versions
from ajet_server.gateway.dialects.chat.options import Parsed
from ajet_server.gateway.dialects.sse import DONE, begun, event
from ajet_server.gateway.request import Answer, Delta, Item, Started, ToolCall


class Chunks:
    """Writes the chunks of one stream: what they all say, around what each adds."""

    def __init__(self, kind: str, parsed: Parsed, started: Started) -> None:
        self._head: dict[str, Any] = {
            "id": started.id,
            "object": kind,
            "created": started.created,
            "model": started.model,
            "system_fingerprint": None,
        }
        self._include_usage = parsed.include_usage
        if parsed.include_usage:
            self._head["usage"] = None
        self._tells_ids = parsed.request.return_token_ids
        self._once = {"prompt_token_ids": started.prompt_ids} if parsed.request.return_token_ids else {}

    def chunk(self, choice: dict[str, Any]) -> bytes:
        """Returns a chunk in which one choice grows."""
        once, self._once = self._once, {}
        return event(self._head | once | {"choices": [choice]})

    def ending(self, answer: Answer, finished: list[dict[str, Any]]) -> Iterator[bytes]:
        """Yields a chunk for each finished choice and what follows them. Only here the weights are known for sure."""
        self._head["system_fingerprint"] = fingerprint(answer)
        for choice, made in zip(finished, answer.choices, strict=True):
            yield self.chunk(choice | (weight_versions(made) if self._tells_ids else {}))
        if self._include_usage:
            yield event(self._head | {"choices": [], "usage": usage(answer)})
        yield DONE


async def events(parsed: Parsed, items: AsyncIterator[Item]) -> AsyncIterator[bytes]:
    """Yields the events of a stream as its items come."""
    chunks = Chunks("chat.completion.chunk", parsed, await begun(items))
    # All choices first: the SDK puts a choice that it has not seen at the end of its list, whatever its index.
    for index in range(parsed.request.n):
        yield chunks.chunk(_choice(index, {"role": "assistant", "content": ""}))
    calls = [0] * parsed.request.n
    async for item in items:
        if isinstance(item, Delta):
            for grown in _grown(parsed, item, calls[item.index]):
                yield chunks.chunk(grown)
            calls[item.index] += len(item.tool_calls)
        elif isinstance(item, Answer):
            finished = [_choice(choice.index, {}, choice.finish_reason) for choice in item.choices]
            for last in chunks.ending(item, finished):
                yield last


def failure(error: AjetError) -> bytes:
    """Returns the event for an error after the stream began. SDKs raise it."""
    return event(error_body(error.message, error.code, error.status, error.field))


def _choice(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _grown(parsed: Parsed, delta: Delta, calls: int) -> Iterator[dict[str, Any]]:
    """One choice per thing that grew: many callers look at one of them only. The first says which tokens are behind it.

    `calls` tool calls came before.
    """
    extras: dict[str, Any] = {}
    if parsed.request.logprobs and delta.logprobs:
        extras["logprobs"] = chat_logprobs(delta.logprobs)
    if parsed.request.return_token_ids and delta.tokens:
        extras["token_ids"] = list(delta.tokens)
    for parts in list(_parts(delta, calls)) or ([{}] if extras else []):
        yield _choice(delta.index, parts) | extras
        extras = {}


def _parts(delta: Delta, calls: int) -> Iterator[dict[str, Any]]:
    if delta.reasoning:
        yield {"reasoning_content": delta.reasoning}
    if delta.text:
        yield {"content": delta.text}
    for index, call in enumerate(delta.tool_calls, calls):
        yield {"tool_calls": [_call(index, call)]}


def _call(index: int, call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": index, "id": call.id, "type": "function", "function": function}
