"""The legacy Completions dialect: a prompt as it is, without a chat template.

Beyond OpenAI's API: `top_k`, and `return_token_ids`, which adds `prompt_token_ids`, `token_ids` and `weight_versions`.
"""

from collections.abc import AsyncIterator
from typing import Annotated, Any

import numpy as np
from msgspec.structs import replace
from pydantic import Field, WithJsonSchema

from ajet_core.errors import RequestError
from ajet_server.gateway.dialects.chat import failure, options
from ajet_server.gateway.dialects.chat.answer import finite, sampled_ids, whole
from ajet_server.gateway.dialects.chat.options import Options, Parsed
from ajet_server.gateway.dialects.chat.stream import Chunks
from ajet_server.gateway.dialects.fields import as_object, drop_off, short, text_at, validate
from ajet_server.gateway.dialects.sse import begun
from ajet_server.gateway.request import Answer, Choice, Delta, FinishReason, IntIds, Item, RawPrompt, TokenLogprob

__all__ = ["NAMES", "Parsed", "RequestBody", "answer", "events", "failure", "parse"]

NAMES = {"messages": "prompt", "prompt_ids": "prompt"}
"""What this dialect calls fields that have another name elsewhere."""

_OFF: dict[str, tuple[Any, ...]] = options.OFF | {"echo": (False,), "suffix": ("",), "best_of": (1,)}
"""Fields that are known and not served, with the values that ask for nothing. `null` always asks for nothing."""

_MAX_TOKENS = 16
"""OpenAI's default."""

_PROMPT = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}],
    "minLength": 1,
    "minItems": 1,
}


class RequestBody(Options):
    prompt: Annotated[Any, WithJsonSchema(_PROMPT)]  # by hand: it may be a hundred thousand ids
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None


def parse(raw: object) -> Parsed:
    """Reads a request body.

    Raises:
        RequestError: names the first field that is wrong, unknown or not served, with its value.
    """
    body = validate(RequestBody, drop_off(as_object(raw), _OFF))
    request = options.request(body, RawPrompt(_prompt(body.prompt)), body.max_tokens or _MAX_TOKENS)
    request = replace(request, logprobs=body.logprobs is not None, top_logprobs=body.logprobs or 0)
    return options.parsed(body, request)


def _prompt(raw: object) -> str | IntIds:
    """One prompt. A list of one is one; more would be calls of their own, which a request cannot be."""
    prompt: object = raw
    if isinstance(raw, list) and raw and isinstance(raw[0], str | list):
        if len(raw) > 1:
            raise RequestError(f"prompt: got {len(raw)} prompts; send a request for each", field="prompt")
        prompt = raw[0]
    if isinstance(prompt, str) and prompt:
        return text_at(prompt, "prompt")
    if isinstance(prompt, list) and prompt:
        return _ids(prompt)
    raise RequestError(f"prompt: got {short(raw)}; a text or a list of token ids is needed", field="prompt")


def _ids(prompt: list[Any]) -> IntIds:
    if set(map(type, prompt)) != {int} or min(prompt) < 0 or max(prompt) >= 2**31:
        raise RequestError(f"prompt: got {short(prompt)}; token ids are integers from 0 on", field="prompt")
    return np.asarray(prompt, np.int32)


def answer(parsed: Parsed, answer: Answer) -> dict[str, Any]:
    """Returns the response body."""
    return whole("text_completion", parsed, answer, [_whole_choice(parsed, choice) for choice in answer.choices])


def _whole_choice(parsed: Parsed, choice: Choice) -> dict[str, Any]:
    logprobs = _logprobs(choice.logprobs, 0) if parsed.request.logprobs else None
    body = _choice(choice.index, choice.text, _finish_reason(choice.finish_reason), logprobs)
    return body | sampled_ids(choice) if parsed.request.return_token_ids else body


async def events(parsed: Parsed, items: AsyncIterator[Item]) -> AsyncIterator[bytes]:
    """Yields the events of a stream as its items come: text, then a finish_reason per choice, usage and [DONE]."""
    chunks = Chunks("text_completion", parsed, await begun(items))
    offsets = [0] * parsed.request.n
    async for item in items:
        if isinstance(item, Delta):
            if grown := _grown(parsed, item, offsets[item.index]):
                yield chunks.chunk(grown)
            offsets[item.index] += sum(len(token.text) for token in item.logprobs)
        elif isinstance(item, Answer):
            finished = [_choice(choice.index, "", _finish_reason(choice.finish_reason)) for choice in item.choices]
            for last in chunks.ending(item, finished):
                yield last


def _grown(parsed: Parsed, delta: Delta, offset: int) -> dict[str, Any] | None:
    """The choice that grew, if anything of it is to be seen."""
    logprobs = _logprobs(delta.logprobs, offset) if parsed.request.logprobs and delta.logprobs else None
    grown = _choice(delta.index, delta.text, None, logprobs)
    if parsed.request.return_token_ids and delta.tokens:
        return grown | {"token_ids": list(delta.tokens)}
    return grown if delta.text or logprobs else None


def _choice(index: int, text: str, finish_reason: str | None, logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def _finish_reason(reason: FinishReason) -> str:
    """There are no tool calls here."""
    return "length" if reason == "length" else "stop"


def _logprobs(tokens: tuple[TokenLogprob, ...], offset: int) -> dict[str, Any]:
    """The legacy shape. Offsets count characters of the tokens' texts put together, from the first sampled one on."""
    ends = np.cumsum([len(token.text) for token in tokens], dtype=int) + offset
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [finite(token.logprob) for token in tokens],
        "top_logprobs": [_top(token) for token in tokens],
        "text_offset": [offset, *ends[:-1].tolist()] if tokens else [],
    }


def _top(token: TokenLogprob) -> dict[str, float]:
    """The likeliest tokens and the sampled one, by text. Parts of characters share a text; the likeliest is kept."""
    found: dict[str, float] = {}
    for text, logprob in (*token.top, (token.text, token.logprob)):
        found.setdefault(text, finite(logprob))
    return found
