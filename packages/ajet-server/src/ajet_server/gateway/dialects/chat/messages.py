"""Messages of a body in normal form (`gateway.request`).

By hand and not by a model: a long conversation comes whole with every call of an agent, and this is what it costs.
"""

import json
from collections.abc import Callable, Set
from typing import Any, TypeAlias

from ajet_core.errors import RequestError
from ajet_server.gateway.dialects.fields import short, text_at
from ajet_server.gateway.request import Message

_SPOKEN = frozenset({"role", "content", "name"})
_FIELDS: dict[str, frozenset[str]] = {
    "system": _SPOKEN,
    "developer": _SPOKEN,
    "user": _SPOKEN,
    "assistant": _SPOKEN | {"reasoning_content", "reasoning", "tool_calls"},
    "tool": _SPOKEN | {"tool_call_id"},
}
ROLES = tuple(_FIELDS)
_PLAIN_ROLES = ("user", "assistant", "system")
_LEFT_EMPTY = frozenset({"refusal", "function_call", "audio", "annotations", "reasoning_details", "tool_calls"})
"""Come back empty (`refusal: null`, `annotations: []`) with every answer that is sent again."""

_CALL = frozenset({"id", "type", "function"})
_FUNCTION = frozenset({"name", "arguments"})
_PART = frozenset({"type", "text", "prompt_cache_breakpoint", "cache_control"})
"""The last two ask that a prefix be cached, which happens anyway."""


def normal_messages(raw: object) -> list[Message]:
    """Reads a conversation.

    Raises:
        RequestError: names the first field that is wrong, unknown or not served.
    """
    if not isinstance(raw, list) or not raw:
        raise _wrong("messages", raw, "a list of at least one message is needed")
    return [_plain(item) or _message(item, f"messages.{index}") for index, item in enumerate(raw)]


def _plain(item: object) -> Message | None:
    """A message of a role and a text that need no second look, as most do; None for others."""
    if type(item) is not dict or len(item) != 2:
        return None
    role, content = item.get("role"), item.get("content")
    if type(content) is not str or not content.isascii() or role not in _PLAIN_ROLES:
        return None
    return item if next(iter(item)) == "role" else {"role": role, "content": content}


def _message(item: object, path: str) -> Message:
    if not isinstance(item, dict):
        raise _wrong(path, item, "a message is an object")
    role = item.get("role")
    known = _FIELDS.get(role) if isinstance(role, str) else None
    if known is None or not isinstance(role, str):
        raise _wrong_role(role, path)
    for name, value in item.items():
        if name not in known and value is not None:
            _refuse_unless_empty(name, value, path)
    message: Message = {"role": "system" if role == "developer" else role, "content": _content(item, role, path)}
    _SPECIAL.get(role, _nothing)(item, message, path)
    if name := item.get("name"):
        message["name"] = text_at(name, f"{path}.name")
    return message


def _wrong_role(role: object, path: str) -> RequestError:
    if role == "function":
        return _wrong(f"{path}.role", role, "functions are superseded by tools, send role 'tool'")
    return _wrong(f"{path}.role", role, f"one of {', '.join(_FIELDS)} is needed")


def _refuse_unless_empty(name: object, value: object, path: str) -> None:
    if name not in _LEFT_EMPTY:
        raise RequestError(f"{path}.{name}: unknown field", field=f"{path}.{name}")
    if value:
        raise _wrong(f"{path}.{name}", value, "not served here, leave it out or send tool_calls with an assistant")


def _content(item: dict[Any, Any], role: str, path: str) -> str:
    content = item.get("content")
    if isinstance(content, str):
        return text_at(content, f"{path}.content")
    if isinstance(content, list):
        return "".join(_part(part, f"{path}.content.{index}") for index, part in enumerate(content))
    if content is not None:
        raise _wrong(f"{path}.content", content, "a string or a list of text parts is needed")
    if role != "assistant":
        raise RequestError(f"{path}.content: required, but not given", field=f"{path}.content")
    return ""


def _part(part: object, path: str) -> str:
    if not isinstance(part, dict):
        raise _wrong(path, part, "a part is an object")
    if part.get("type") != "text":
        raise _wrong(f"{path}.type", part.get("type"), "only parts of type 'text' are served")
    _only(part, _PART, path)
    return text_at(part.get("text"), f"{path}.text")


def _nothing(item: dict[Any, Any], message: Message, path: str) -> None:
    """For roles whose messages are content only."""


def _assistant(item: dict[Any, Any], message: Message, path: str) -> None:
    thoughts = [item[name] for name in ("reasoning_content", "reasoning") if item.get(name)]
    if thoughts:
        message["reasoning_content"] = text_at(thoughts[0], f"{path}.reasoning_content")
    if thoughts[1:] and thoughts[1] != thoughts[0]:
        raise _wrong(f"{path}.reasoning", thoughts[1], "it contradicts reasoning_content, send one")
    if calls := item.get("tool_calls"):
        message["tool_calls"] = _tool_calls(calls, f"{path}.tool_calls")


def _tool(item: dict[Any, Any], message: Message, path: str) -> None:
    message["tool_call_id"] = _named(item, "tool_call_id", path)


_Special: TypeAlias = Callable[[dict[Any, Any], Message, str], None]
_SPECIAL: dict[str, _Special] = {"assistant": _assistant, "tool": _tool}


def _tool_calls(calls: object, path: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise _wrong(path, calls, "a list of tool calls is needed")
    return [_tool_call(call, index, f"{path}.{index}") for index, call in enumerate(calls)]


def _tool_call(call: object, index: int, path: str) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise _wrong(path, call, "a tool call is an object")
    if call.get("type", "function") != "function":
        raise _wrong(f"{path}.type", call["type"], "only tool calls of type 'function' are served")
    # Calls that a caller put together from a stream may keep the index that they had there.
    _only(call, _CALL | {"index"} if call.get("index") == index else _CALL, path)
    function = call.get("function")
    if not isinstance(function, dict):
        raise _wrong(f"{path}.function", function, "an object with name and arguments is needed")
    _only(function, _FUNCTION, f"{path}.function")
    return {
        "id": _named(call, "id", path),
        "type": "function",
        "function": {
            "name": _named(function, "name", f"{path}.function"),
            "arguments": arguments_at(function.get("arguments"), f"{path}.function.arguments"),
        },
    }


def arguments_at(value: object, path: str) -> str:
    """Arguments of a tool call as they were sent; no text at all means no arguments.

    Raises:
        RequestError: they are no JSON text of an object, so no template could show them.
    """
    text = text_at(value, path)
    if not text.strip():
        return "{}"
    try:
        found: object = json.loads(text)
        if "\\u" in text:  # may name half of a surrogate pair
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _wrong(path, value, "the JSON text of an object is needed")
    return text


def _only(item: dict[Any, Any], known: Set[str], path: str) -> None:
    for name, value in item.items():
        if name not in known and value is not None:
            raise RequestError(f"{path}.{name}: unknown field", field=f"{path}.{name}")


def _named(item: dict[Any, Any], name: str, path: str) -> str:
    """A text that has to be there."""
    value = item.get(name)
    if value is None or value == "":
        raise RequestError(f"{path}.{name}: required, but not given", field=f"{path}.{name}")
    return text_at(value, f"{path}.{name}")


def _wrong(path: str, value: object, right: str) -> RequestError:
    return RequestError(f"{path}: got {short(value)}; {right}", field=path)
