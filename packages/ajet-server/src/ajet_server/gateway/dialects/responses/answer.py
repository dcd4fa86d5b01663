"""A finished answer as a Response object."""

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

from ajet_server.gateway.dialects.chat.answer import finite, sampled_ids
from ajet_server.gateway.dialects.responses.ids import item_id, response_id, seal
from ajet_server.gateway.dialects.responses.parse import Parsed
from ajet_server.gateway.request import Answer, Choice, TokenLogprob, ToolCall

Item: TypeAlias = dict[str, Any]


def answer(parsed: Parsed, answer: Answer) -> dict[str, Any]:
    """Returns the response body, with up to one item for the thinking, up to one for the message, one for each call."""
    choice = answer.choices[0]
    items: list[Item] = []
    if choice.reasoning:
        item = open_reasoning(answer.id, 0)
        items.append(close_reasoning(item, choice.reasoning, sealed=parsed.sealed))
    if choice.text or needs_message(choice):
        items.append(close_message(open_message(answer.id, 0), choice.text, choice.logprobs))
    items += [close_call(open_call(answer.id, index, call), call) for index, call in enumerate(choice.tool_calls)]
    if is_last_cut(choice):
        items[-1]["status"] = "incomplete"
    return response(parsed, answer, items)


def needs_message(choice: Choice) -> bool:
    """True if an answer without text has an empty message: unless it calls tools, or was cut off while it thought."""
    return not (choice.tool_calls or (choice.reasoning and is_cut(choice)))


def is_cut(choice: Choice) -> bool:
    """True if the answer is at its bound and not at its end."""
    return choice.finish_reason == "length"


def is_last_cut(choice: Choice) -> bool:
    """True if the last item is not whole. Calls always are: one that was cut off is text."""
    return is_cut(choice) and not choice.tool_calls


def response(parsed: Parsed, answer: Answer, items: list[Item]) -> dict[str, Any]:
    """Returns the Response object of a finished answer with these output items."""
    choice = answer.choices[0]
    status: Literal["completed", "incomplete"] = "incomplete" if is_cut(choice) else "completed"
    body = skeleton(parsed, answer.id, answer.created, answer.model, status=status)
    body |= {
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut(choice) else None,
        "output": items,
        "usage": _usage(answer),
    }
    if parsed.request.return_token_ids:
        body |= {"prompt_token_ids": answer.prompt_ids, **sampled_ids(choice)}
    return body


def skeleton(
    parsed: Parsed, answer: str, created: int, model: str, *, status: Literal["in_progress", "completed", "incomplete"]
) -> dict[str, Any]:
    """Returns the Response object of the answer with this id, without output."""
    return {
        "id": response_id(answer),
        "object": "response",
        "created_at": created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": [],
        "service_tier": "default",
        "store": True,
        "truncation": "disabled",
        "usage": None,
    } | parsed.repeated


def open_reasoning(answer: str, index: int) -> Item:
    """Returns an item of thinking before its first word."""
    return {
        "id": item_id("rs", answer, index),
        "type": "reasoning",
        "summary": [],
        "content": [],
        "encrypted_content": None,
        "status": "in_progress",
    }


def close_reasoning(item: Item, text: str, *, sealed: bool) -> Item:
    """Returns the whole item. It is no summary of the thinking but the words themselves."""
    content = [{"type": "reasoning_text", "text": text}]
    return item | {"content": content, "encrypted_content": seal(text) if sealed else None, "status": "completed"}


def open_message(answer: str, index: int) -> Item:
    """Returns a message before its first word."""
    return {
        "id": item_id("msg", answer, index),
        "type": "message",
        "role": "assistant",
        "content": [],
        "status": "in_progress",
    }


def close_message(item: Item, text: str, logprobs: Iterable[TokenLogprob]) -> Item:
    """Returns the whole message."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": logprob_entries(logprobs)}
    return item | {"content": [part], "status": "completed"}


def open_call(answer: str, index: int, call: ToolCall) -> Item:
    """Returns a tool call before its arguments."""
    return {
        "id": item_id("fc", answer, index),
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": "",
        "status": "in_progress",
    }


def close_call(item: Item, call: ToolCall) -> Item:
    """Returns the whole tool call."""
    return item | {"arguments": call.arguments, "status": "completed"}


def logprob_entries(logprobs: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    """Returns the entries of tokens: of all that were sampled, thinking and the end included, as in other dialects."""
    return [
        _entry(token.text, token.logprob) | {"top_logprobs": [_entry(text, value) for text, value in token.top]}
        for token in logprobs
    ]


def _entry(text: str, logprob: float) -> dict[str, Any]:
    # A token that is a part of a character has no text, so its bytes are not known here; this API knows no `null`.
    known = [] if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": finite(logprob), "bytes": known}


def _usage(answer: Answer) -> dict[str, Any]:
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": answer.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": answer.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }
