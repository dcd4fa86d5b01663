"""`Context`: what a call looked like before it was tokens. And the form in which messages are compared.

Two messages are the same when their canonical forms are equal:

    role         as it is
    content      None, "" and absent are equal; a list of one text part equals its text; other lists stay lists
    tool_calls   (name, arguments) in order; arguments are JSON with sorted keys, or text where they are no JSON
    images       a base64 `data:` URL stands for the digest of its bytes, any other URL for itself
    the rest     every other key with a value, `name`, `refusal` and `audio` for example, is part of the form

No part of it are reasoning (`REASONING_KEYS`, `REASONING_PARTS`, and what an assistant's text holds up to `</think>`,
opened with `<think>` or, as some templates do, in the prompt), the ids of tool calls (`ID_KEYS`) and what never reaches
a prompt (`METADATA_KEYS`). Since ids do not count, the answers of parallel tool calls are told apart by order.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from ._arrays import IntArray
from ._json import digested, is_empty, json_of_texts, json_text, mappings, plain_value, refuse

Message: TypeAlias = Mapping[str, Any]
"""A chat message as OpenAI's Chat Completions write it: role, content, tool_calls, ... Plain JSON."""

REASONING_KEYS = ("reasoning", "reasoning_content", "reasoning_details", "thinking", "thinking_blocks")
REASONING_PARTS = ("reasoning", "thinking", "redacted_thinking")
ID_KEYS = ("id", "tool_call_id")
METADATA_KEYS = ("annotations", "cache_control", "logprobs")

_CALL_KEYS = ("id", "index", "type")
_NOT_COMPARED = frozenset((*REASONING_KEYS, *ID_KEYS, *METADATA_KEYS))


@dataclass(frozen=True, eq=False, slots=True)
class Context:
    """The messages of one call. The caller's objects are not copied: do not change them while this is in use.

    Attributes:
        messages: the request's messages.
        response: the message that the completion was parsed into; None if it was not parsed.
        tools: the tools of the request, as given.
        message_ends: i32[len(messages)], ascending: the number of prompt tokens up to and including each message as the
            template rendered it, with the tokens that close the message's turn. Takes any sequence of integers.

    Raises:
        MergeError: a message is no mapping with a role, or `message_ends` does not fit the messages.
    """

    messages: tuple[Message, ...]
    response: Message | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    message_ends: IntArray | None = None

    def __post_init__(self) -> None:
        check_messages(self.messages)
        if self.response is not None:
            check_message(self.response, "response")
        object.__setattr__(self, "messages", tuple(self.messages))
        object.__setattr__(self, "tools", mappings(self.tools, "tools"))
        if self.message_ends is not None:
            object.__setattr__(self, "message_ends", _ends(self.message_ends, len(self.messages)))


def check_messages(messages: object, start: int = 0) -> None:
    """Refuse with a `MergeError` what is no list or tuple of messages; those before `start` are taken to be right."""
    if not isinstance(messages, list | tuple):
        refuse("messages", messages, "must be a list of messages")
    for index in range(start, len(messages)):
        check_message(messages[index], f"messages[{index}]")


def check_message(message: object, name: str) -> None:
    """Refuse with a `MergeError` what is no mapping with a role; `name` says which message it is."""
    if not isinstance(message, Mapping):
        refuse(name, message, "a message must be a mapping of role, content and further keys")
    role: object = message.get("role")
    if not isinstance(role, str) or not role:
        refuse(f"{name}.role", role, "must be a non-empty string such as 'user'")


def check_ends(context: Context, prompt_size: int, name: str) -> None:
    """Refuse with a `MergeError` a context whose messages end beyond its prompt; `name` says whose context it is."""
    ends = context.message_ends
    if ends is not None and ends.size and ends[-1] > prompt_size:
        rule = f"must be at most the number of prompt tokens, {prompt_size}"
        refuse(f"{name}: message_ends[{ends.size - 1}]", int(ends[-1]), rule)


def plain_message(message: Message, name: str = "message") -> dict[str, Any]:
    """A copy in plain dicts and lists. Refuses with a `MergeError` what JSON cannot hold; `name` says which message."""
    if is_spoken(message):
        return dict(message)
    check_message(message, name)
    if type(message) is dict and all(type(key) is str is type(value) for key, value in message.items()):
        return message.copy()
    return plain_value(message, name)


def is_spoken(message: object) -> bool:
    """Whether a message is of the commonest form, a role and a text: nothing about it can be wrong."""
    return (
        type(message) is dict
        and len(message) == 2
        and type(message.get("role")) is str is type(message.get("content"))
        and message["role"] != ""
    )


def is_canonical(message: Message) -> bool:
    """Whether a message is spoken and all of it counts: there is a text, and no reasoning in it."""
    if not is_spoken(message):
        return False
    content: str = message["content"]
    return content != "" and ("<" not in content or "</think>" not in content)  # one letter is found ten times faster


def canonical_message(message: Message, name: str = "message") -> str:
    """The canonical form as JSON text: equal texts, equal messages.

    Args:
        message: not modified.
        name: what errors call it.

    Raises:
        MergeError: names the field that is not what chat messages hold there.
    """
    if is_canonical(message):
        return json_of_texts("content", message["content"], "role", message["role"])
    return json_text(canonical_fields(message, name))


def canonical_fields(message: Message, name: str = "message") -> dict[str, Any]:
    """The canonical form by field: `role` always, and `content`, `tool_calls` and others where they hold anything.

    `content` is a string or a list of parts, `tool_calls` a list of [name, arguments as JSON text, further keys of the
    function, further keys of the call]. See `canonical_message` for arguments and errors.
    """
    plain = plain_message(message, name)
    if is_canonical(plain):
        return plain
    fields = {key: _field(key, value, f"{name}.{key}") for key, value in plain.items() if key not in _NOT_COMPARED}
    if plain["role"] == "assistant" and isinstance(fields.get("content"), str):
        fields["content"] = _thought_and_text(fields["content"])[1]
    return _further(fields)


def canonical_tools(tools: object, name: str = "") -> str:
    """Tools as JSON text with sorted keys, in the order given; "" if there are none.

    Raises:
        MergeError: names the tool that is no mapping or no JSON, after `name`.
    """
    checked = mappings(tools, f"{name}tools")
    return json_text(plain_value(checked, f"{name}tools")) if checked else ""


def reasoning(message: Message) -> dict[str, Any]:
    """What a message holds of reasoning, by key; reasoning parts of its content, or in its text, under "content"."""
    if is_canonical(message):
        return {}
    content, found = message.get("content"), {key: message.get(key) for key in REASONING_KEYS}
    if isinstance(content, list | tuple):
        found["content"] = [part for part in content if _is_reasoning(part)]
    elif isinstance(content, str) and message["role"] == "assistant":
        found["content"] = _thought_and_text(content)[0]
    return _further(found)


def _field(key: str, value: Any, name: str) -> Any:
    if is_empty(value):
        return None
    if key == "content":
        return _content(value, name)
    if key == "tool_calls":
        return [_tool_call(call, f"{name}[{index}]") for index, call in enumerate(mappings(value, name))]
    return digested(value)


def _content(content: Any, name: str) -> str | list[Any]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        refuse(name, content, "must be a string, a list of parts or None")
    parts = [_part(part, f"{name}[{index}]") for index, part in enumerate(content) if not _is_reasoning(part)]
    return parts[0]["text"] if len(parts) == 1 and parts[0].keys() == {"type", "text"} else parts


def _part(part: Any, name: str) -> dict[str, Any]:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        refuse(name, part, "a part of a content must be a mapping with a type, such as 'text'")
    kept = {key: value for key, value in part.items() if key not in METADATA_KEYS and value is not None}
    if part["type"] == "text":
        if not isinstance(part.get("text"), str):
            refuse(f"{name}.text", part.get("text"), "must be a string")
        return kept
    if isinstance(kept.get("image_url"), str):
        kept["image_url"] = {"url": kept["image_url"]}
    return digested(kept)


def _thought_and_text(content: str) -> tuple[str, str]:
    """What an assistant's content begins with of reasoning, and its text."""
    thought, closing, text = content.partition("</think>")
    if not closing or "<think>" in thought.lstrip().removeprefix("<think>"):
        return "", content
    return thought + closing, text.lstrip()


def _is_reasoning(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in REASONING_PARTS


def _tool_call(call: Mapping[str, Any], name: str) -> Any:
    if call.get("type", "function") != "function":
        return _further(call, "id", "index")
    # Templates take {"function": {"name", "arguments"}} and {"name", "arguments"} for the same.
    function = call.get("function", call)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        refuse(f"{name}.function", function, "must be a mapping with a name, a string, and arguments")
    is_flat = function is call
    of_function = _further(function, "name", "arguments", *(_CALL_KEYS if is_flat else ()))
    of_call = {} if is_flat else _further(call, "function", *_CALL_KEYS)
    return [function["name"], _arguments(function.get("arguments")), of_function, of_call]


def _further(fields: Mapping[str, Any], *known: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in known and not is_empty(value)}


def _arguments(value: Any) -> str:
    """As canonical JSON text. What is no JSON stays as it is, and so cannot be taken for what is."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return json_text(value)
    try:
        return json_text(plain_value(json.loads(value), "arguments"))
    except (ValueError, RecursionError):  # a model may sample anything here, a thousand brackets too
        return value


def _ends(values: ArrayLike, messages: int) -> IntArray:
    try:
        given = np.asarray(values)
    except ValueError:
        refuse("message_ends", values, "must be a flat sequence of integers")
    if given.shape != (messages,) or (messages and given.dtype.kind not in "iu"):
        refuse("message_ends", values, f"must be one integer for each of the {messages} messages")
    if messages and (int(given.min()) < 0 or int(given.max()) > 2**31 - 1 or (given[1:] < given[:-1]).any()):
        refuse("message_ends", values, "must be numbers of prompt tokens, each at least the one before")
    ends = given.astype(np.int32)
    ends.flags.writeable = False
    return ends
