"""Bodies of every dialect that say as much as they can, and what can be done to them."""

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

PREVIOUS = "@previous@"
"""Stands for the id of an earlier response."""

_SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
_FUNCTION = {"name": "look", "description": "Looks.", "parameters": _SCHEMA, "strict": True}
_TEXTS = [{"type": "text", "text": "hello"}, {"type": "text", "text": " 🌍"}]

_CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": _TEXTS, "name": "ann"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "call00001", "content": "seen"},
        {"role": "user", "content": "hello"},
    ],
    "tools": [{"type": "function", "function": _FUNCTION}],
    "tool_choice": {"type": "function", "function": {"name": "look"}},
    "parallel_tool_calls": False,
    "max_completion_tokens": 40,
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 5,
    "seed": 3,
    "n": 2,
    "stop": ["END", "###"],
    "logit_bias": {"5": -1.5},
    "logprobs": True,
    "top_logprobs": 2,
    "metadata": {"run": "a"},
    "user": "bob",
    "stream_options": {"include_usage": True},
    "return_token_ids": True,
}
_COMPLETIONS: dict[str, Any] = {
    "model": "tiny",
    "prompt": [5, 6, 7],
    "max_tokens": 20,
    "temperature": 0.7,
    "top_p": 0.9,
    "seed": 3,
    "n": 2,
    "stop": "END",
    "logit_bias": {"5": -1.5},
    "logprobs": 2,
    "echo": False,
    "stream_options": {"include_usage": True},
    "return_token_ids": True,
}
_RESPONSES: dict[str, Any] = {
    "model": "tiny",
    "instructions": "be brief",
    "previous_response_id": PREVIOUS,
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "call00001", "name": "look", "arguments": '{"x": 1}'},
        {"type": "function_call_output", "call_id": "call00001", "output": "seen"},
        {"role": "user", "content": "hello"},
    ],
    "tools": [{"type": "function", **_FUNCTION}],
    "tool_choice": "required",
    "max_output_tokens": 40,
    "temperature": 0.7,
    "top_p": 0.9,
    "text": {"format": {"type": "json_schema", "name": "s", "schema": _SCHEMA}},
    "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
    "top_logprobs": 2,
    "metadata": {"run": "a"},
    "store": True,
    "return_token_ids": True,
}
_MESSAGES: dict[str, Any] = {
    "model": "tiny",
    "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": _TEXTS},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "let me"},
                {"type": "tool_use", "id": "call00001", "name": "look", "input": {"x": 1}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call00001", "content": _TEXTS}]},
    ],
    "tools": [{"name": "look", "description": "Looks.", "input_schema": _SCHEMA}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "max_tokens": 40,
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 5,
    "stop_sequences": ["END"],
    "thinking": {"type": "adaptive"},
    "metadata": {"user_id": "bob"},
    "return_token_ids": True,
}
BODIES = {
    "/v1/chat/completions": _CHAT,
    "/v1/completions": _COMPLETIONS,
    "/v1/responses": _RESPONSES,
    "/v1/messages": _MESSAGES,
    "/v1/messages/count_tokens": {
        name: _MESSAGES[name] for name in ("model", "system", "messages", "tools", "tool_choice", "thinking")
    },
}

_RAW = {
    "@raw-nan@": "NaN",
    "@raw-infinity@": "-Infinity",
    "@raw-huge@": "1e999",
    "@raw-digits@": "9" * 5000,
    "@raw-lists@": "[" * 5000 + "]" * 5000,
    "@raw-some-lists@": "[" * 200 + "]" * 200,
    "@raw-objects@": '{"a":' * 900 + "1" + "}" * 900,
    "@raw-more-objects@": '{"a":' * 5000 + "1" + "}" * 5000,
    "@raw-twice@": '{"type": "text", "type": 1, "type": "text", "text": "a", "text": "b"}',
    "@raw-surrogate@": r'"a\ud800"',
    "@raw-controls@": r'"\u0000\u2028\u0085"',
    "@raw-not-json@": "'",
}
"""What `json.dumps` does not write, by the text that stands for it."""

_scalars = st.sampled_from(
    [
        *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**40, 0.5, -0.0, 1e308, 5e-324, "", " ", "tiny"),
        *("\ud800", "\x00", "x" * 3000, "é🌍\u202e", "1", "auto", "<|im_end|>", "<tool_call>", "{}", '{"x":', "[]"),
        *([], {}, [None], [[]], {"": None}, {"type": None}, {"type": "text"}, {"\ud800": "\ud800"}, "text", "user"),
    ]
) | st.sampled_from(sorted(_RAW))
_values = _scalars | st.recursive(
    _scalars | st.text(st.characters(), max_size=5) | st.integers() | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def mutated(draw: st.DrawFn, body: dict[str, Any]) -> bytes:
    """A body with some fields left out and up to three things done to it, as bytes."""
    kept = draw(st.sets(st.sampled_from(sorted(body)), min_size=1))
    needed = {"model", "messages", "prompt", "input", "max_tokens"}  # nothing would be asked without them
    found: dict[str, Any] = copy.deepcopy({name: value for name, value in body.items() if name in kept | needed})
    for _ in range(draw(st.integers(0, 3))):
        _mutate(draw, found)
    if draw(st.booleans()):
        found["stream"] = True
    else:
        found.pop("stream_options", None)
    return _encoded(found)


def _mutate(draw: st.DrawFn, root: dict[str, Any]) -> None:
    if not root:
        return
    holder, key = draw(st.sampled_from(list(_places(root))))
    deed = draw(st.sampled_from(["replace", "replace", "remove", "wrap", "add", "many"]))
    if deed == "replace":
        holder[key] = copy.deepcopy(draw(_values))
    elif deed == "remove":
        del holder[key]
    elif deed == "wrap":
        holder[key] = draw(st.sampled_from([[holder[key]], {"type": holder[key]}, {"a": holder[key]}]))
    elif deed == "many" and isinstance(holder, list):
        holder *= draw(st.sampled_from([2, 40]))
    else:
        name = draw(st.sampled_from(["type", "content", "", "x\ud800", "é", "audio"]))
        inner = holder[key]
        (inner if isinstance(inner, dict) else root)[name] = copy.deepcopy(draw(_values))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Everything in a body: what holds it, and by which key."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        yield value, key
        yield from _places(value[key])


def _encoded(body: dict[str, Any]) -> bytes:
    text = json.dumps(body)
    for name, raw in _RAW.items():
        text = text.replace(json.dumps(name), raw)
    return text.encode()
