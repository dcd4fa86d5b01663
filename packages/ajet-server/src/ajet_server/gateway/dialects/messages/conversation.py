"""A conversation of the Messages API in normal form.

    system                             a system message
    user: tool_result blocks, text     a `tool` message for each result, then a user message
    assistant: thinking, text,         one assistant message; blocks of a kind are joined in their order, since a chat
        tool_use                       template has one place for each kind

Text blocks are joined without anything between them, as Chat Completions' text parts are. Messages are never merged:
two user messages stay two.

A result with `is_error` begins with "Error: " for the model, which is the only way for it to know.
"""

import hashlib
from typing import Any

from ajet_core.errors import RequestError
from ajet_server.gateway.dialects.fields import text_at
from ajet_server.gateway.dialects.messages.reading import fields_at, flag_at, json_text_at, list_at, wrong
from ajet_server.gateway.request import Message

_SIGNATURE = "ajet-"
_BILLING = "x-anthropic-billing-header:"
"""Begins a system block of Claude Code that is meant for Anthropic's bookkeeping and differs from call to call."""

_SERVED = {"user": "text and tool_result", "assistant": "text, thinking and tool_use", "system": "text"}


def signature_of(thinking: str) -> str:
    """What a thinking block is signed with: a checksum, by which a block that was changed is noticed."""
    return _SIGNATURE + hashlib.sha256(thinking.encode()).hexdigest()


def read_messages(system: object, raw_messages: list[Any]) -> list[Message]:
    """Reads `system` and `messages`.

    Raises:
        RequestError: names the first field that is wrong, unknown or not served, or the last message is the
            assistant's, which the API would continue.
    """
    instructions = "" if system is None else _instructions(system)
    messages: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
    for index, raw in enumerate(raw_messages):
        messages += _messages(raw, f"messages.{index}")
    if messages[-1]["role"] == "assistant":
        at = f"messages.{len(raw_messages) - 1}"
        raise RequestError(f"{at}: the assistant's message comes last; to continue it is not served", field=at)
    return messages


def _instructions(system: object) -> str:
    if isinstance(system, str):
        return text_at(system, "system")
    return "".join(text for text in _texts(system, "system", "system") if not text.startswith(_BILLING))


def _messages(raw: object, at: str) -> list[Message]:
    present = fields_at(raw, at, ("role", "content"))
    role, content, at_content = present["role"], present["content"], f"{at}.content"
    if not isinstance(role, str) or role not in _SERVED:
        raise wrong(f"{at}.role", role, "user, assistant or system is needed")
    if isinstance(content, str):
        return [{"role": role, "content": text_at(content, at_content)}]
    if role == "assistant":
        return [_assistant(content, at_content)]
    if not list_at(content, at_content):
        raise wrong(at_content, content, "at least one block is needed")
    if role == "user":
        return _user(content, at_content)
    return [{"role": role, "content": "".join(_texts(content, at_content, role))}]


def _user(blocks: list[Any], at: str) -> list[Message]:
    results: list[Message] = []
    texts: list[str] = []
    for index, block in enumerate(blocks):
        here = f"{at}.{index}"
        kind = _kind(block, here)
        if kind == "text":
            texts.append(_text(block, here))
        elif kind != "tool_result":
            raise _refused(kind, here, "user")
        elif texts:
            raise RequestError(f"{here}: a tool_result comes before the message's text", field=here)
        else:
            results.append(_tool_result(block, here))
    return results + ([{"role": "user", "content": "".join(texts)}] if texts else [])


def _tool_result(block: object, at: str) -> Message:
    present = fields_at(block, at, ("type", "tool_use_id"), ("content", "is_error", "cache_control"))
    content, failed = present.get("content", ""), flag_at(present.get("is_error", False), f"{at}.is_error")
    at_content = f"{at}.content"
    text = text_at(content, at_content) if isinstance(content, str) else "".join(_texts(content, at_content, "tool"))
    call_id = text_at(present["tool_use_id"], f"{at}.tool_use_id")
    return {"role": "tool", "content": f"Error: {text}" if failed else text, "tool_call_id": call_id}


def _assistant(raw_blocks: object, at: str) -> Message:
    reasoning: list[str] = []
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(list_at(raw_blocks, at)):
        here = f"{at}.{index}"
        kind = _kind(block, here)
        if kind == "text":
            texts.append(_text(block, here))
        elif kind == "thinking":
            reasoning.append(_thinking(block, here))
        elif kind == "tool_use":
            calls.append(_tool_use(block, here))
        else:
            raise _refused(kind, here, "assistant")
    message: Message = {"role": "assistant", "content": "".join(texts)}
    if thinking := "".join(reasoning):
        message["reasoning_content"] = thinking
    return message | ({"tool_calls": calls} if calls else {})


def _thinking(block: object, at: str) -> str:
    """Thinking of other models has other signatures and is taken as it is, as Chat Completions takes it without any."""
    present = fields_at(block, at, ("type", "thinking", "signature"))
    thinking = text_at(present["thinking"], f"{at}.thinking")
    signature = text_at(present["signature"], f"{at}.signature")
    if signature.startswith(_SIGNATURE) and signature != signature_of(thinking):
        raise wrong(f"{at}.thinking", thinking, "it was changed since it was sampled; send it as it came")
    return thinking


def _tool_use(block: object, at: str) -> dict[str, Any]:
    present = fields_at(block, at, ("type", "id", "name", "input"), ("caller", "cache_control"))
    caller = present.get("caller", {"type": "direct"})
    if caller != {"type": "direct"}:
        raise wrong(f"{at}.caller", caller, "only {'type': 'direct'} is served")
    return {
        "id": text_at(present["id"], f"{at}.id"),
        "type": "function",
        "function": {
            "name": text_at(present["name"], f"{at}.name"),
            "arguments": json_text_at(present["input"], f"{at}.input"),
        },
    }


def _texts(raw_blocks: object, at: str, role: str) -> list[str]:
    texts: list[str] = []
    for index, block in enumerate(list_at(raw_blocks, at)):
        here = f"{at}.{index}"
        kind = _kind(block, here)
        if kind != "text":
            raise _refused(kind, here, role)
        texts.append(_text(block, here))
    return texts


def _text(block: object, at: str) -> str:
    present = fields_at(block, at, ("type", "text"), ("cache_control", "citations"))
    if present.get("citations"):
        raise wrong(f"{at}.citations", present["citations"], "citations are not served; leave them out")
    return text_at(present["text"], f"{at}.text")


def _kind(block: object, at: str) -> object:
    if not isinstance(block, dict):
        raise wrong(at, block, "it must be an object with a type")
    return block.get("type")


def _refused(kind: object, at: str, role: str) -> RequestError:
    return wrong(f"{at}.type", kind, f"only {_SERVED.get(role, 'text')} blocks are served here")
