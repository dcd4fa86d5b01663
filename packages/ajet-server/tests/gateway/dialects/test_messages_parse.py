"""Bodies of the Messages dialect: what is read, and every refusal by name."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_core.errors import RequestError
from ajet_server.gateway.dialects.messages import parse, parse_count
from ajet_server.gateway.dialects.messages.conversation import signature_of
from ajet_server.gateway.request import ChatRequest, Conversation, Message, NamedTool, ResponseFormat

HELLO = [{"role": "user", "content": "hello"}]
CACHE = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
TOOL = {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}
NORMAL_TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}},
}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 2000, "messages": HELLO, **fields}


def read(thinks: bool = False, **fields: Any) -> ChatRequest:
    return parse(body(**fields), thinks=thinks).request


def conversation(**fields: Any) -> Conversation:
    prompt = read(**fields).prompt
    assert isinstance(prompt, Conversation)
    return prompt


def messages_of(*messages: Any, **fields: Any) -> list[Message]:
    return conversation(messages=list(messages), **fields).messages


def test_the_least_request() -> None:
    parsed = parse(body(), thinks=False)
    assert parsed.request == ChatRequest(model="m", prompt=Conversation(messages=HELLO), max_tokens=2000)
    assert not parsed.stream
    assert parse(body(stream=True), thinks=False).stream


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"temperature": 0.5, "top_p": 0.5, "top_k": 5}, {"temperature": 0.5, "top_p": 0.5, "top_k": 5}),
        ({"stop_sequences": ["a", "b"]}, {"stop": ("a", "b")}),
        ({"seed": 7}, {"seed": 7}),
        ({"metadata": {"user_id": "u"}}, {"labels": {"metadata": {"user_id": "u"}}}),
        ({"metadata": {"user_id": None}}, {}),
        ({"user_profile_id": "p"}, {"labels": {"user_profile_id": "p"}}),
        ({"return_token_ids": True}, {"return_token_ids": True}),
        (
            {"output_config": {"effort": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}}},
            {"response_format": ResponseFormat({"type": "object"})},
        ),
        ({"service_tier": "auto", "speed": "standard", "mcp_servers": [], **CACHE}, {}),
        ({"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}, {}),
        ({"thinking": {"type": "adaptive", "display": "summarized"}}, {}),
        ({"thinking": {"type": "disabled"}}, {}),
        (dict.fromkeys(["temperature", "tools", "system", "thinking", "output_config", "metadata", "container"]), {}),
    ],
)
def test_accepted_fields(sent: dict[str, Any], found: dict[str, Any]) -> None:
    request, least = read(**sent), read()
    for name in ChatRequest.__struct_fields__:
        assert getattr(request, name) == found.get(name, getattr(least, name)), name


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        ("Be brief.", "Be brief."),
        ([{"type": "text", "text": "Be ", **CACHE}, {"type": "text", "text": "brief."}], "Be brief."),
        (
            [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": "Be brief."}],
            "Be brief.",
        ),
        ("", None),
        ([], None),
    ],
)
def test_system(sent: Any, found: str | None) -> None:
    expected = [] if found is None else [{"role": "system", "content": found}]
    assert messages_of(*HELLO, system=sent) == expected + HELLO


def test_a_tool_loop() -> None:
    sent = [
        {"role": "user", "content": [{"type": "text", "text": "1+2"}, {"type": "text", "text": "?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": signature_of("hm")},
                {"type": "text", "text": "I add.", "citations": None, "parsed_output": None},
                {"type": "tool_use", "id": "a", "name": "add", "input": {"x": "é"}, "caller": {"type": "direct"}},
                {"type": "tool_use", "id": "b", "name": "add", "input": {}, **CACHE},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "3"}], **CACHE},
                {"type": "tool_result", "tool_use_id": "b", "content": "no", "is_error": True},
                {"type": "text", "text": "And now?"},
            ],
        },
        {"role": "system", "content": [{"type": "text", "text": "Hurry."}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "is_error": None, "content": None}]},
    ]
    assert messages_of(*sent) == [
        {"role": "user", "content": "1+2?"},
        {
            "role": "assistant",
            "content": "I add.",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"x": "é"}'}},
                {"id": "b", "type": "function", "function": {"name": "add", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "content": "3", "tool_call_id": "a"},
        {"role": "tool", "content": "Error: no", "tool_call_id": "b"},
        {"role": "user", "content": "And now?"},
        {"role": "system", "content": "Hurry."},
        {"role": "tool", "content": "", "tool_call_id": "c"},
    ]


@pytest.mark.parametrize("signature", ["", "EqQBCgIYAhIM", signature_of("hm")])
def test_thinking_of_others_is_taken_as_it_is(signature: str) -> None:
    block = {"type": "thinking", "thinking": "hm", "signature": signature}
    found = messages_of(*HELLO, {"role": "assistant", "content": [block]}, *HELLO)
    assert found[1] == {"role": "assistant", "content": "", "reasoning_content": "hm"}


@pytest.mark.parametrize("content", ["", [], [{"type": "text", "text": ""}]])
def test_an_empty_answer_can_be_sent_back(content: Any) -> None:
    assert messages_of({"role": "assistant", "content": content}, *HELLO)[0] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    ("choice", "found", "parallel"),
    [
        (None, "auto", True),
        ({"type": "auto"}, "auto", True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "any", "disable_parallel_tool_use": False}, "required", True),
        ({"type": "tool", "name": "add", "disable_parallel_tool_use": True}, NamedTool("add"), False),
        ({"type": "none"}, "none", True),
    ],
)
def test_tools(choice: dict[str, Any] | None, found: object, parallel: bool) -> None:
    prompt = conversation(tools=[{**TOOL, **CACHE, "type": "custom", "defer_loading": False}], tool_choice=choice)
    assert prompt.tools == (NORMAL_TOOL,)
    assert (prompt.tool_choice, prompt.parallel_tool_calls) == (found, parallel)


def test_a_strict_tool_without_a_description() -> None:
    tool = {"name": "f", "input_schema": {}, "strict": True, "eager_input_streaming": True}
    assert conversation(tools=[tool]).tools[0]["function"] == {"name": "f", "parameters": {}, "strict": True}


@pytest.mark.parametrize(
    ("thinking", "thinks"),
    [
        ({"type": "adaptive"}, True),
        ({"type": "adaptive"}, False),
        ({"type": "enabled", "budget_tokens": 1024}, True),
        ({"type": "disabled"}, False),
    ],
)
def test_thinking_that_happens_anyway(thinking: dict[str, Any], thinks: bool) -> None:
    assert read(thinks, thinking=thinking) == read()


@pytest.mark.parametrize(
    ("thinking", "thinks", "field"),
    [
        ({"type": "enabled", "budget_tokens": 1024}, False, "thinking.type"),
        ({"type": "disabled"}, True, "thinking.type"),
        ({"type": "between_tools"}, True, "thinking.type"),
        ({"type": "enabled"}, True, "thinking.budget_tokens"),
        ({"type": "adaptive", "budget_tokens": 1024}, True, "thinking.budget_tokens"),
        ({"type": "enabled", "budget_tokens": 1000}, True, "thinking.budget_tokens"),
        ({"type": "enabled", "budget_tokens": 2000}, True, "thinking.budget_tokens"),
        ({"type": "adaptive", "display": "omitted"}, True, "thinking.display"),
    ],
)
def test_thinking_that_is_refused(thinking: dict[str, Any], thinks: bool, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(thinks, thinking=thinking)
    assert caught.value.field == field
    assert field in caught.value.message


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": "a"}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences.0"),
        ({"stop_sequences": ["\ud800"]}, "stop_sequences.0"),
        ({"stream": "yes"}, "stream"),
        ({"metadata": {"user": "x"}}, "metadata.user"),
        ({"model": 5}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "system.0.type"),
        ({"seed": -1}, "seed"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"speed": "fast"}, "speed"),
        ({"inference_geo": "us"}, "inference_geo"),
        ({"diagnostics": {"previous_message_id": "m"}}, "diagnostics"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management"),
        ({"output_config": {"effort": "low"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]}, "tools.0.type"),
        ({"tools": [{"name": "add"}]}, "tools.0.input_schema"),
        ({"tools": [{**TOOL, "name": "a b"}]}, "tools.0.name"),
        ({"tools": [{**TOOL, "input_schema": {"a": "\ud800"}}]}, "tools.0.input_schema"),
        ({"tools": [TOOL, TOOL]}, "tools.1.name"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools.0.defer_loading"),
        ({"tools": [{**TOOL, "input_examples": [{}]}]}, "tools.0.input_examples"),
        ({"tools": [{**TOOL, "allowed_callers": ["code_execution_20250825"]}]}, "tools.0.allowed_callers.0"),
        ({"tool_choice": {"type": "any"}}, "tool_choice.type"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "sub"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "auto", "name": "add"}}, "tool_choice.name"),
    ],
)
def test_refusals(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(**fields)
    assert caught.value.field == field
    assert field in caught.value.message


@pytest.mark.parametrize("raw", [None, [], "x", 5])
def test_what_is_no_object(raw: object) -> None:
    with pytest.raises(RequestError, match="must be a JSON object"):
        parse(raw, thinks=False)


RESULT = {"type": "tool_result", "tool_use_id": "a"}
USE = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
TEXT = {"type": "text", "text": "x"}


@pytest.mark.parametrize(
    ("role", "content", "field"),
    [
        ("tool", "x", "role"),
        (None, "x", "role"),
        (["user"], "x", "role"),
        ("user", None, "content"),
        ("user", 5, "content"),
        ("user", [], "content"),
        ("user", "\ud800", "content"),
        ("user", ["x"], "content.0"),
        ("user", [{"type": "image", "source": {}}], "content.0.type"),
        ("user", [TEXT, {"type": "document", "source": {}}], "content.1.type"),
        ("user", [{}], "content.0.type"),
        ("user", [{"type": ["text"]}], "content.0.type"),
        ("user", [USE], "content.0.type"),
        ("user", [{"type": "text"}], "content.0.text"),
        ("user", [{**TEXT, "bold": True}], "content.0.bold"),
        ("user", [{**TEXT, "citations": [{}]}], "content.0.citations"),
        ("user", [TEXT, RESULT], "content.1"),
        ("user", [{"type": "tool_result"}], "content.0.tool_use_id"),
        ("user", [{**RESULT, "is_error": "no"}], "content.0.is_error"),
        ("user", [{**RESULT, "content": 5}], "content.0.content"),
        ("user", [{**RESULT, "content": [TEXT, {"type": "image"}]}], "content.0.content.1.type"),
        ("assistant", [RESULT], "content.0.type"),
        ("assistant", [{"type": "redacted_thinking", "data": "x"}], "content.0.type"),
        ("assistant", [{"type": "thinking", "thinking": "x"}], "content.0.signature"),
        ("assistant", [{"type": "thinking", "thinking": "x", "signature": signature_of("y")}], "content.0.thinking"),
        ("assistant", [{**USE, "input": "{}"}], "content.0.input"),
        ("assistant", [{**USE, "input": {"a": float("inf")}}], "content.0.input"),
        ("assistant", [{**USE, "input": {"a": "\ud800"}}], "content.0.input"),
        ("assistant", [{**USE, "caller": {"type": "code_execution_20250825"}}], "content.0.caller"),
        ("system", [RESULT], "content.0.type"),
    ],
)
def test_messages_that_are_wrong(role: object, content: object, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        messages_of(*HELLO, {"role": role, "content": content}, *HELLO)
    assert caught.value.field == f"messages.1.{field}"
    assert caught.value.message.startswith(caught.value.field)


def test_nothing_is_continued() -> None:
    with pytest.raises(RequestError, match=r"^messages\.1: the assistant's message comes last"):
        messages_of(*HELLO, {"role": "assistant", "content": "The answer is ("})


def test_a_count_needs_the_prompt_only() -> None:
    counted = parse_count({"model": "m", "messages": HELLO, "system": "s", "tools": [TOOL]}, thinks=False)
    assert counted.prompt == conversation(system="s", tools=[TOOL])
    with pytest.raises(RequestError, match=r"^max_tokens: unknown field"):
        parse_count(body(), thinks=False)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KINDS = st.sampled_from(["text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image", "auto", "tool"])
objects = st.dictionaries(
    st.sampled_from(
        [
            *[
                "type",
                "role",
                "content",
                "text",
                "thinking",
                "signature",
                "id",
                "name",
                "input",
                "tool_use_id",
                "is_error",
                "caller",
            ]
        ]
    ),
    KINDS
    | st.sampled_from(["user", "assistant", "system"])
    | values
    | st.lists(st.fixed_dictionaries({"type": KINDS})),
    max_size=5,
)
bodies = st.fixed_dictionaries(
    {"model": st.just("m"), "max_tokens": st.just(5), "messages": st.just(HELLO) | st.lists(objects, max_size=3)},
    optional=dict.fromkeys(
        [
            "system",
            "tools",
            "tool_choice",
            "thinking",
            "output_config",
            "metadata",
            "stop_sequences",
            "top_k",
            "stream",
            "cache_control",
        ],
        values | objects | st.lists(objects, max_size=2),
    ),
)


@settings(deadline=None, max_examples=300)
@given(values | bodies, st.booleans())
def test_whatever_comes_is_read_or_refused(raw: object, thinks: bool) -> None:
    with suppress(RequestError):
        parse(raw, thinks=thinks)
