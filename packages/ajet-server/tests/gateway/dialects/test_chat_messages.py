"""Messages of Chat Completions in normal form."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessage
from openai_helpers import choice_of

from ajet_core.errors import RequestError
from ajet_server.gateway.dialects.chat.messages import normal_messages
from ajet_server.gateway.request import Delta, ToolCall


def call(**changes: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}, **changes}


def test_messages() -> None:
    given = [
        {"role": "developer", "content": "rules"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "bob"},
        {"role": "assistant", "content": "c", "name": None},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call()]},
        {"role": "tool", "content": [], "tool_call_id": "c"},
    ]
    assert normal_messages(given) == [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "ab", "name": "bob"},
        {"role": "assistant", "content": "c"},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call()]},
        {"role": "tool", "content": "", "tool_call_id": "c"},
    ]


def test_what_is_read_is_no_longer_what_was_sent() -> None:
    given = [{"role": "assistant", "content": "", "tool_calls": [call()]}]
    normal_messages(given)[0]["tool_calls"][0]["function"]["name"] = "g"
    assert given[0] == {"role": "assistant", "content": "", "tool_calls": [call()]}


@pytest.mark.parametrize(
    ("given", "thinking"),
    [
        ({"reasoning_content": "a"}, "a"),
        ({"reasoning": "a"}, "a"),
        ({"reasoning": "a", "reasoning_content": "a"}, "a"),
        ({"reasoning": "", "reasoning_content": None}, None),
    ],
)
def test_thinking_by_whatever_name(given: dict[str, Any], thinking: str | None) -> None:
    message = normal_messages([{"role": "assistant", "content": "b", **given}])[0]
    assert message.get("reasoning_content") == thinking
    assert "reasoning" not in message


@pytest.mark.parametrize(("given", "read"), [("", "{}"), (" \n", "{}"), ('{"a":\t1}', '{"a":\t1}'), ("{}", "{}")])
def test_arguments_stay_as_they_were_sent(given: str, read: str) -> None:
    sent = call(function={"name": "f", "arguments": given})
    message = normal_messages([{"role": "assistant", "content": "", "tool_calls": [sent]}])[0]
    assert message["tool_calls"][0]["function"]["arguments"] == read


def test_a_call_may_keep_its_index_in_a_stream() -> None:
    given = [{"role": "assistant", "content": "", "tool_calls": [call(index=0), call(index=1)]}]
    assert normal_messages(given)[0]["tool_calls"] == [call(), call()]


texts = st.text(max_size=8)
calls = st.builds(ToolCall, st.text(min_size=1, max_size=4), st.just("f"), st.just('{"a":"\\u00e9"}'))


@given(texts, texts, st.lists(calls, max_size=2))
def test_an_answer_may_be_sent_again_as_the_sdk_gives_it(text: str, reasoning: str, made: list[ToolCall]) -> None:
    message = choice_of([Delta(0, text, reasoning, tuple(made))]).message()
    given = message | {"refusal": None, "annotations": [], "audio": None, "function_call": None}
    for sent in (given, {"tool_calls": [], **given}, {"tool_calls": None, **given}):
        assert normal_messages([sent]) == [message]
        assert normal_messages([ChatCompletionMessage.model_validate(sent).model_dump()]) == [message]


def as_call(**changes: Any) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": "", "tool_calls": [call(**changes)]}]


def arguments(text: Any) -> list[dict[str, Any]]:
    return as_call(function={"name": "f", "arguments": text})


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "messages"),
        ([], "messages"),
        (["hi"], "messages.0"),
        ([{}], "messages.0.role"),
        ([{"role": "owner", "content": ""}], "messages.0.role"),
        ([{"role": [], "content": ""}], "messages.0.role"),
        ([{"role": "function", "name": "f", "content": ""}], "messages.0.role"),
        ([{"role": "user"}], "messages.0.content"),
        ([{"role": "user", "content": None}], "messages.0.content"),
        ([{"role": "user", "content": 5}], "messages.0.content"),
        ([{"role": "user", "content": "\ud800"}], "messages.0.content"),
        ([{"role": "user", "content": "", "extra": 1}], "messages.0.extra"),
        ([{"role": "user", "content": "", "name": 5}], "messages.0.name"),
        ([{"role": "user", "content": "", "tool_call_id": "c"}], "messages.0.tool_call_id"),
        ([{"role": "user", "content": "", "reasoning": "c"}], "messages.0.reasoning"),
        ([{"role": "user", "content": "", "tool_calls": [call()]}], "messages.0.tool_calls"),
        ([{"role": "user", "content": ["a"]}], "messages.0.content.0"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages.0.content.0.type"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages.0.content.0.type"),
        ([{"role": "user", "content": [{"type": "file"}]}], "messages.0.content.0.type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages.0.content.0.text"),
        ([{"role": "user", "content": [{"type": "text", "text": "", "x": 1}]}], "messages.0.content.0.x"),
        ([{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}], "messages.0.content.0.type"),
        ([{"role": "assistant", "refusal": "no"}], "messages.0.refusal"),
        ([{"role": "assistant", "function_call": {"name": "f"}}], "messages.0.function_call"),
        ([{"role": "assistant", "audio": {"id": "a"}}], "messages.0.audio"),
        ([{"role": "assistant", "reasoning": "a", "reasoning_content": "b"}], "messages.0.reasoning"),
        ([{"role": "assistant", "reasoning": 5}], "messages.0.reasoning_content"),
        ([{"role": "assistant", "tool_calls": {"a": 1}}], "messages.0.tool_calls"),
        ([{"role": "assistant", "tool_calls": [5]}], "messages.0.tool_calls.0"),
        (as_call(type="custom"), "messages.0.tool_calls.0.type"),
        (as_call(id=None), "messages.0.tool_calls.0.id"),
        (as_call(id=""), "messages.0.tool_calls.0.id"),
        (as_call(index=1), "messages.0.tool_calls.0.index"),
        (as_call(x=1), "messages.0.tool_calls.0.x"),
        (as_call(function=None), "messages.0.tool_calls.0.function"),
        (as_call(function={"name": "f"}), "messages.0.tool_calls.0.function.arguments"),
        (as_call(function={"arguments": ""}), "messages.0.tool_calls.0.function.name"),
        (as_call(function={"name": "f", "arguments": "", "x": 1}), "messages.0.tool_calls.0.function.x"),
        (arguments({"a": 1}), "messages.0.tool_calls.0.function.arguments"),
        (arguments("[]"), "messages.0.tool_calls.0.function.arguments"),
        (arguments("{"), "messages.0.tool_calls.0.function.arguments"),
        (arguments('{"a": "\\ud800"}'), "messages.0.tool_calls.0.function.arguments"),
        (arguments("[" * 100_000), "messages.0.tool_calls.0.function.arguments"),
        ([{"role": "tool", "content": ""}], "messages.0.tool_call_id"),
        (
            [{"role": "user", "content": ""}, {"role": "tool", "content": "", "tool_call_id": 5}],
            "messages.1.tool_call_id",
        ),
    ],
)
def test_refusals_name_the_field(given: Any, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        normal_messages(given)
    assert caught.value.field == field
    assert caught.value.message.startswith(f"{field}: ")


leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
keys = st.sampled_from(
    [
        "role",
        "content",
        "name",
        "type",
        "text",
        "tool_calls",
        "tool_call_id",
        "function",
        "arguments",
        "id",
        "reasoning",
    ]
)
values = st.recursive(
    leaves | st.sampled_from(["user", "assistant", "tool", "text", "function", "{}"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=5),
    max_leaves=12,
)


@given(values)
def test_whatever_is_sent_is_read_or_refused(raw: Any) -> None:
    for sent in (raw, [raw]):
        try:
            messages = normal_messages(sent)
        except RequestError:
            continue
        assert normal_messages(messages) == messages
        assert json.dumps(messages, ensure_ascii=False).encode()
