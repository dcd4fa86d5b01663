"""Chat Completions, read: every accepted field, and every refusal by name."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming

from ajet_core.errors import RequestError
from ajet_server.gateway.dialects.chat import Parsed, parse
from ajet_server.gateway.dialects.chat.parse import _MODERN, _OFF, RequestBody
from ajet_server.gateway.request import ChatRequest, Conversation, NamedTool, ResponseFormat

HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "find", "description": "finds", "parameters": SCHEMA}}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": HELLO, **fields}


def test_the_least_request() -> None:
    assert parse(body()) == Parsed(ChatRequest("m", Conversation(HELLO)), stream=False, include_usage=False)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"max_tokens": 5, "max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"temperature": 2}, {"temperature": 2.0}),
        ({"top_p": 0.5}, {"top_p": 0.5}),
        ({"top_k": 40}, {"top_k": 40}),
        ({"stop": "a"}, {"stop": ("a",)}),
        ({"stop": ["a", "b"]}, {"stop": ("a", "b")}),
        ({"stop": []}, {"stop": ()}),
        ({"seed": -1}, {"seed": 2**63 - 1}),
        ({"seed": 7}, {"seed": 7}),
        ({"n": 16}, {"n": 16}),
        ({"logit_bias": {"5": -100, "6": 0, "70": 1.5}}, {"logit_bias": ((5, -100.0), (70, 1.5))}),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"response_format": ResponseFormat(None)}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "q", "schema": SCHEMA}}},
            {"response_format": ResponseFormat(SCHEMA)},
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "q", "schema": SCHEMA, "strict": True, "description": "d"},
                }
            },
            {"response_format": ResponseFormat({"description": "d"} | SCHEMA)},
        ),
        ({"logprobs": True, "top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        ({"return_token_ids": True}, {"return_token_ids": True}),
        (
            {"user": "me", "metadata": {"a": "b"}, "prompt_cache_key": "k", "safety_identifier": "s", "store": True},
            {"labels": {"user": "me", "metadata": {"a": "b"}, "prompt_cache_key": "k", "safety_identifier": "s"}},
        ),
        ({"user": "", "metadata": {}, "store": False}, {}),
        (dict.fromkeys(["max_tokens", "temperature", "top_p", "stop", "seed", "logprobs", "user", "stream"]), {}),
    ],
)
def test_accepted_fields(fields: dict[str, Any], found: dict[str, Any]) -> None:
    request, least = parse(body(**fields)).request, parse(body()).request
    for name in ChatRequest.__struct_fields__:
        assert getattr(request, name) == found.get(name, getattr(least, name))


@pytest.mark.parametrize(
    ("fields", "stream", "include_usage"),
    [
        ({"stream": True}, True, False),
        ({"stream": True, "stream_options": {}}, True, False),
        ({"stream": True, "stream_options": {"include_usage": False}}, True, False),
        ({"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}}, True, True),
    ],
)
def test_streams(fields: dict[str, Any], *, stream: bool, include_usage: bool) -> None:
    parsed = parse(body(**fields))
    assert (parsed.stream, parsed.include_usage) == (stream, include_usage)


def test_tools_are_put_in_normal_form() -> None:
    given = {"function": {"strict": False, "parameters": SCHEMA, "description": "finds", "name": "find"}}
    strict = {"type": "function", "function": {"strict": True, "name": "least", "parameters": None}}
    tools = parse(body(tools=[{"type": "function", **given}, strict])).request.prompt.tools
    assert json.dumps(tools[0]) == json.dumps(TOOL)
    assert tools[1] == {"type": "function", "function": {"name": "least", "strict": True}}


@pytest.mark.parametrize(
    ("fields", "choice"),
    [
        ({}, "auto"),
        ({"tool_choice": "none"}, "none"),
        ({"tool_choice": "auto"}, "auto"),
        ({"tools": [TOOL], "tool_choice": "required"}, "required"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "find"}}}, NamedTool("find")),
    ],
)
def test_tool_choice(fields: dict[str, Any], choice: Any) -> None:
    assert parse(body(**fields)).request.prompt.tool_choice == choice


def test_parallel_tool_calls() -> None:
    assert parse(body(tools=[TOOL])).request.prompt.parallel_tool_calls
    assert not parse(body(tools=[TOOL], parallel_tool_calls=False)).request.prompt.parallel_tool_calls


ON: dict[str, Any] = {
    "presence_penalty": 0.5,
    "frequency_penalty": -1,
    "service_tier": "flex",
    "modalities": ["text", "audio"],
    "reasoning_effort": "low",
    "audio": {},
    "prediction": {},
    "web_search_options": {},
    "verbosity": "low",
    "moderation": {"model": "m"},
    "prompt_cache_options": {"mode": "explicit"},
    "prompt_cache_retention": "24h",
}


def test_every_field_that_is_not_served_has_a_case() -> None:
    assert ON.keys() == _OFF.keys()


@pytest.mark.parametrize("name", ON)
def test_what_is_not_served_is_refused_by_name(name: str) -> None:
    with pytest.raises(RequestError, match=rf"^{name}: .* is not served; leave it out") as caught:
        parse(body(**{name: ON[name]}))
    assert caught.value.field == name
    for off in (*_OFF[name], None):
        assert parse(body(**{name: off})) == parse(body())


@pytest.mark.parametrize(
    ("name", "value", "modern"),
    [("functions", [{"name": "f"}], "tools"), ("function_call", {"name": "f"}, "tool_choice")],
)
def test_superseded_fields_are_refused_with_the_name_to_send(name: str, value: Any, modern: str) -> None:
    with pytest.raises(RequestError, match=f"is not served; send {modern}$") as caught:
        parse(body(**{name: value}))
    assert caught.value.field == name
    for off in (*_MODERN[name][0], None):
        parse(body(**{name: off}))


def test_every_field_of_the_official_api_is_known() -> None:
    official = {
        name for kind in CompletionCreateParamsNonStreaming.__mro__ for name in vars(kind).get("__annotations__", {})
    }
    official |= CompletionCreateParamsNonStreaming.__annotations__.keys()
    assert {"messages", "model", "stream"} <= official
    assert official <= RequestBody.model_fields.keys() | _OFF.keys() | _MODERN.keys()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": float("nan")}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 10**30}, "top_k"),
        ({"seed": 2**63}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"logit_bias": {"five": 1}}, "logit_bias.five"),
        ({"logit_bias": {"05": 1}}, "logit_bias.05"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logit_bias": {"5": float("nan")}}, "logit_bias.5"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop.1"),
        ({"stop": list("abcde")}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"stream": True, "stream_options": {"other": True}}, "stream_options.other"),
        ({"tools": [{"type": "custom", "custom": {"name": "c"}}]}, "tools.0.type"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "x": 1}}]}, "tools.0.function.x"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"a": ["\ud800"]}}}]},
            "tools.0.function.parameters",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"a": float("nan")}}}]},
            "tools.0.function.parameters",
        ),
        ({"tools": [TOOL, TOOL]}, "tools.1.function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "any"}, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice.function.name",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
            "tool_choice.allowed_tools",
        ),
        ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
        ({"response_format": {"type": "grammar"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "text", "json_schema": {"name": "a", "schema": {}}}},
            "response_format.json_schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
        ),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"model": 5}, "model"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"max_token": 5}, "max_token"),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(body(**fields))
    assert caught.value.field == field
    assert caught.value.message.startswith(f"{field}: ")


@pytest.mark.parametrize("raw", [None, [], "text", 5, True])
def test_a_body_that_is_no_object(raw: object) -> None:
    with pytest.raises(RequestError, match="must be a JSON object"):
        parse(raw)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from([*_OFF, *_MODERN, *RequestBody.model_fields, "other"])


@given(st.dictionaries(names, json_values, max_size=5))
def test_whatever_is_sent_is_read_or_refused(fields: dict[str, Any]) -> None:
    for raw in (fields, body(**fields)):
        try:
            request = parse(raw).request
        except RequestError:
            continue
        assert json.dumps(request.prompt.messages).isascii()
