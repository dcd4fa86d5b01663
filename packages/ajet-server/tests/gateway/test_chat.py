"""The Chat Completions dialect: every accepted field, and every refusal by name."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.errors import RequestError
from ajet_server.gateway.dialects import chat
from ajet_server.gateway.dialects.chat import parse
from ajet_server.gateway.request import ChatRequest, ChatResult

HELLO = [{"role": "user", "content": "hello"}]


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": HELLO, **fields}


def test_the_least_request() -> None:
    assert parse(body()) == ChatRequest(
        model="m",
        messages=HELLO,
        max_tokens=None,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        stop=(),
        seed=None,
        logprobs=False,
        top_logprobs=0,
    )


@pytest.mark.parametrize(
    ("sent", "found"),
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
        ({"logprobs": True, "top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        ({"user": "me", "metadata": {"a": "b"}}, {}),
        (dict.fromkeys(["max_tokens", "temperature", "top_p", "stop", "seed", "logprobs", "user", "stream"]), {}),
    ],
)
def test_accepted_fields(sent: dict[str, Any], found: dict[str, Any]) -> None:
    request = parse(body(**sent))
    least = parse(body())
    for name in ChatRequest.__dataclass_fields__:
        assert getattr(request, name) == found.get(name, getattr(least, name))


def test_messages() -> None:
    sent = [
        {"role": "developer", "content": "rules"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "bob"},
        {"role": "assistant", "content": "c", "name": None},
        {"role": "tool", "content": "d", "tool_call_id": "call_1"},
    ]
    assert parse(body(messages=sent)).messages == [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "ab", "name": "bob"},
        {"role": "assistant", "content": "c"},
        {"role": "tool", "content": "d", "tool_call_id": "call_1"},
    ]


ON: dict[str, Any] = {
    "stream": True,
    "n": 2,
    "presence_penalty": 0.5,
    "frequency_penalty": -1,
    "logit_bias": {"5": 1},
    "tools": [{"type": "function"}],
    "functions": [{}],
    "tool_choice": "required",
    "parallel_tool_calls": "yes",
    "response_format": {"type": "json_object"},
    "store": True,
    "stream_options": {},
    "service_tier": "flex",
    "modalities": ["text", "audio"],
    "reasoning_effort": "low",
    "audio": {},
    "prediction": {},
    "web_search_options": {},
    "verbosity": "low",
    "function_call": {"name": "f"},
}


def test_every_field_that_is_not_served_has_a_case() -> None:
    assert ON.keys() == chat._OFF.keys()


@pytest.mark.parametrize("name", ON)
def test_what_is_not_served_is_refused_by_name(name: str) -> None:
    with pytest.raises(RequestError, match=rf"^{name}: .* is not served yet; leave it out") as caught:
        parse(body(**{name: ON[name]}))
    assert caught.value.field == name
    for off in (*chat._OFF[name], None):
        parse(body(**{name: off}))


def test_an_answer_may_be_sent_again_as_the_sdk_gives_it() -> None:
    given = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": [],
        "tool_calls": None,
        "audio": None,
    }
    asked = parse({"model": "m", "messages": [{"role": "user", "content": "hi"}, given], "prompt_cache_key": None})
    assert asked.messages[1] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": float("nan")}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 10**30}, "top_k"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop.1"),
        ({"stop": list("abcde")}, "stop"),
        ({"stop": 5}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "owner", "content": ""}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": "", "extra": 1}]}, "messages.0.extra"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}, "messages.0.tool_calls"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages.0.content"),
        ({"model": 5}, "model"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"max_token": 5}, "max_token"),
    ],
)
def test_refusals_name_the_field(sent: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(body(**sent))
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
names = st.sampled_from([*chat._OFF, *chat._Body.model_fields, "other"])


@given(st.dictionaries(names, json_values, max_size=5))
def test_whatever_is_sent_is_read_or_refused(fields: dict[str, Any]) -> None:
    for raw in (fields, body(**fields)):
        try:
            request = parse(raw)
        except RequestError:
            continue
        assert json.dumps(request.messages).isascii()


def result(**changes: Any) -> ChatResult:
    fields: dict[str, Any] = {
        "call_id": "call_1",
        "text": "hi",
        "token_ids": [1, 2],
        "tokens": ["h", "i"],
        "logprobs": [-1.0, -2.0],
        "top_logprobs": [[("h", -1.0)], [("i", -2.0)]],
        "finish_reason": "stop",
        "prompt_tokens": 3,
        "cached_tokens": 1,
        "weight_version": 4,
    }
    return ChatResult(**fields | changes)


def test_the_answer() -> None:
    answer = chat.answer(parse(body()), result())
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "hi", "refusal": None}
    assert answer["choices"][0]["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 2
    assert answer["usage"]["total_tokens"] == 5
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}


def test_the_answer_with_logprobs() -> None:
    answer = chat.answer(parse(body(logprobs=True, top_logprobs=1)), result())
    content = answer["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in content] == [-1.0, -2.0]
    assert content[0]["top_logprobs"] == [{"token": "h", "logprob": -1.0, "bytes": [104]}]
    without = chat.answer(parse(body(logprobs=True)), result(top_logprobs=[]))
    assert without["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


def test_the_sdk_understands_the_answer() -> None:
    from openai.types.chat import ChatCompletion

    answer = ChatCompletion.model_validate(chat.answer(parse(body(logprobs=True, top_logprobs=1)), result()))
    assert answer.choices[0].message.content == "hi"
