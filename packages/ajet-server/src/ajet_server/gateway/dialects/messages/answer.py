"""A finished answer as a message.

Its `content` is a thinking block, a text block and tool_use blocks, each only if there is anything in it.
"""

import json
from typing import Any

from ajet_server.gateway.dialects.chat.answer import sampled_ids
from ajet_server.gateway.dialects.messages.body import Parsed
from ajet_server.gateway.dialects.messages.conversation import signature_of
from ajet_server.gateway.request import Answer, Choice


def answer(parsed: Parsed, answer: Answer) -> dict[str, Any]:
    """Returns the response body."""
    choice = answer.choices[0]
    return {
        "id": answer.id,
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": _content(choice),
        **stop_of(choice),
        "usage": usage_of(answer),
        **prompt_ids_of(parsed, answer.prompt_ids),
        **token_ids_of(parsed, choice),
    }


def count(prompt_tokens: int) -> dict[str, Any]:
    """Returns the response body of a count: all tokens of the prompt, cached or not."""
    return {"input_tokens": prompt_tokens}


def stop_of(choice: Choice) -> dict[str, str | None]:
    """Why it ended, and which of the caller's strings ended it."""
    if choice.finish_reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if choice.finish_reason == "tool_calls":
        return {"stop_reason": "tool_use", "stop_sequence": None}
    return {"stop_reason": "end_turn" if choice.stop is None else "stop_sequence", "stop_sequence": choice.stop}


def usage_of(answer: Answer) -> dict[str, Any]:
    """Tokens. As this API counts, `input_tokens` leaves out the cached ones: the three inputs add up to the prompt."""
    return {
        "input_tokens": answer.prompt_tokens - answer.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": answer.cached_tokens,
        "output_tokens": answer.completion_tokens,
        "output_tokens_details": {"thinking_tokens": answer.reasoning_tokens},
    }


def prompt_ids_of(parsed: Parsed, prompt_ids: list[int]) -> dict[str, list[int]]:
    """The prompt's ids as a field of the message, if they were asked for: an extension, named as in other dialects."""
    return {"prompt_token_ids": prompt_ids} if parsed.request.return_token_ids else {}


def token_ids_of(parsed: Parsed, choice: Choice) -> dict[str, Any]:
    """The completion's ids and the versions of the weights that sampled them, likewise."""
    return sampled_ids(choice) if parsed.request.return_token_ids else {}


def _content(choice: Choice) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if choice.reasoning:
        signature = signature_of(choice.reasoning)
        blocks.append({"type": "thinking", "thinking": choice.reasoning, "signature": signature})
    if choice.text:
        blocks.append({"type": "text", "text": choice.text})
    return blocks + [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
        for call in choice.tool_calls
    ]
