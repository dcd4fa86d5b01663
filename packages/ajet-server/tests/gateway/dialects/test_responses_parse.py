"""The Responses dialect: every field of a request, and every refusal by name."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from ajet_core.errors import NotFoundError, RequestError
from ajet_server.gateway.dialects import responses
from ajet_server.gateway.dialects.responses import Parsed
from ajet_server.gateway.dialects.responses.body import NESTED_OFF, OFF, RequestBody
from ajet_server.gateway.request import ChatRequest, Conversation, Message, NamedTool, ResponseFormat

HELLO: list[Message] = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
NORMAL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
LOGPROBS = "message.output_text.logprobs"


def never(answer: str) -> list[Message]:
    raise AssertionError(f"nobody asked for {answer}")


def parse(recall: Callable[[str], list[Message]] = never, **fields: Any) -> Parsed:
    return responses.parse({"model": "m", "input": "hello", **fields}, recall)


def conversation(parsed: Parsed) -> Conversation:
    assert isinstance(parsed.request.prompt, Conversation)
    return parsed.request.prompt


def test_the_least_request() -> None:
    parsed = parse()
    assert parsed.request == ChatRequest(model="m", prompt=Conversation(HELLO))
    assert not parsed.stream
    assert not parsed.sealed


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        ({"max_output_tokens": 5}, {"max_tokens": 5}),
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"top_p": 0.5}, {"top_p": 0.5}),
        ({"include": [LOGPROBS]}, {"logprobs": True}),
        ({"include": [LOGPROBS], "top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        ({"text": {"format": {"type": "text"}}}, {}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": ResponseFormat(None)}),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": False}}},
            {"response_format": ResponseFormat({"type": "object"})},
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "description": "d"}}},
            {"response_format": ResponseFormat({"description": "d"})},
        ),
        (
            {"user": "me", "metadata": {"a": "b"}, "safety_identifier": "s", "prompt_cache_key": "k"},
            {"labels": {"user": "me", "metadata": {"a": "b"}, "safety_identifier": "s", "prompt_cache_key": "k"}},
        ),
        ({"return_token_ids": True}, {"return_token_ids": True}),
        ({"store": True}, {}),
        ({"store": False}, {}),
        ({"reasoning": {"summary": "auto", "effort": None}}, {}),
        ({"text": {"verbosity": "medium"}}, {}),
        ({"stream": True, "stream_options": {"include_obfuscation": False}}, {}),
        (dict.fromkeys(RequestBody.model_fields.keys() - {"model", "input"}), {}),
    ],
)
def test_accepted_fields(sent: dict[str, Any], found: dict[str, Any]) -> None:
    request, least = parse(**sent).request, parse().request
    for name in ChatRequest.__struct_fields__:
        assert getattr(request, name) == found.get(name, getattr(least, name))


def test_tools() -> None:
    other = {"type": "function", "name": "g", "description": "d", "strict": False, "defer_loading": False}
    asked = conversation(parse(tools=[TOOL, other], tool_choice="required", parallel_tool_calls=False))
    assert asked.tools == (NORMAL, {"type": "function", "function": {"name": "g", "description": "d"}})
    assert asked.tool_choice == "required"
    assert not asked.parallel_tool_calls
    named = conversation(parse(tools=[TOOL], tool_choice={"type": "function", "name": "f"}))
    assert named.tool_choice == NamedTool("f")


def test_instructions_are_marked_and_come_first() -> None:
    asked: list[str] = []

    def recall(answer: str) -> list[Message]:
        asked.append(answer)
        return [*HELLO, {"role": "assistant", "content": "hi"}]

    parsed = parse(recall, instructions="be brief", previous_response_id="resp_call_1", input="more")
    assert asked == ["call_1"]
    assert conversation(parsed).messages == [
        {"role": "system", "content": "be brief"},
        *HELLO,
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "more"},
    ]
    assert parsed.request.labels == {"instructions": True}


def test_an_unknown_answer_is_not_found() -> None:
    def recall(answer: str) -> list[Message]:
        raise NotFoundError(f"no {answer}")

    with pytest.raises(NotFoundError, match="no other"):
        parse(recall, previous_response_id="other")


ON: dict[str, Any] = {
    "background": True,
    "conversation": "conv_1",
    "prompt": {"id": "p"},
    "max_tool_calls": 1,
    "truncation": "auto",
    "service_tier": "flex",
    "context_management": [{"type": "compaction"}],
    "moderation": {"model": "m"},
    "image": {},
    "access_programs": {},
    "background_options": {},
    "prompt_cache_options": {"mode": "explicit"},
    "prompt_cache_retention": "24h",
    "reasoning.effort": "none",
    "reasoning.summary": "detailed",
    "reasoning.generate_summary": "concise",
    "reasoning.context": "all_turns",
    "reasoning.mode": "pro",
    "text.verbosity": "low",
    "stream_options.include_obfuscation": True,
}
ALL_OFF = OFF | {f"{name}.{key}": off for name, inner in NESTED_OFF.items() for key, off in inner.items()}


def test_every_field_of_the_api_is_known() -> None:
    assert ResponseCreateParamsBase.__annotations__.keys() <= RequestBody.model_fields.keys() | OFF.keys()
    assert ON.keys() == ALL_OFF.keys()


@pytest.mark.parametrize("name", ON)
def test_what_is_not_served_is_refused_by_name(name: str) -> None:
    outer, _, inner = name.partition(".")

    def send(value: object) -> None:
        parse(stream=True, **{outer: {inner: value} if inner else value})

    with pytest.raises(RequestError, match=rf"^{name}: .* is not served; leave it out") as caught:
        send(ON[name])
    assert caught.value.field == name
    for off in (*ALL_OFF[name], None):
        send(off)


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["hello"]}, "input.0"),
        ({"input": "\ud800"}, "input"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
        ({"model": 5}, "model"),
        ({"instructions": ["a"]}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": "5"}, "max_output_tokens"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 21, "include": [LOGPROBS]}, "top_logprobs"),
        ({"include": ["file_search_call.results"]}, "include.0"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"reasoning": {"budget": 1}}, "reasoning.budget"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"tools": [{"type": "web_search"}]}, "tools.0"),
        ({"tools": [TOOL, TOOL]}, "tools.1.name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools.0.name"),
        ({"tools": [TOOL | {"defer_loading": True}]}, "tools.0.defer_loading"),
        ({"tools": [TOOL | {"parameters": {"x": "\ud800"}}]}, "tools.0.parameters"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice.name"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_object", "schema": {}}}}, "text.format.schema"),
        ({"max_tokens": 5}, "max_tokens"),
    ],
)
def test_refusals_name_the_field(sent: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(**sent)
    assert caught.value.field == field
    assert caught.value.message.startswith(f"{field}: ")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
item_fields = st.sampled_from(["type", "role", "content", "id", "call_id", "name", "arguments", "output", "summary"])
words = st.sampled_from(["message", "user", "assistant", "function_call", "reasoning", "function_call_output", "{}"])
items = st.lists(st.dictionaries(item_fields, words | json_values, max_size=5), max_size=3)
names = st.sampled_from([*OFF, *RequestBody.model_fields, "other"])


@given(st.dictionaries(names, json_values, max_size=5), items)
def test_whatever_is_sent_is_read_or_refused(fields: dict[str, Any], sent: list[Any]) -> None:
    for body in (fields, {"model": "m", "input": "hello"} | fields, {"model": "m", "input": sent}):
        try:
            parsed = responses.parse(body, lambda _: [])
        except RequestError as refused:
            assert refused.message  # noqa: PT017
            continue
        assert json.dumps(conversation(parsed).messages, ensure_ascii=False).encode()
