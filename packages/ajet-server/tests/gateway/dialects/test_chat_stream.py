"""Chat Completions, streamed: chunks as the OpenAI SDK puts them together."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import APIError
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai_helpers import STARTED, answer_of, choice_of, extras, logprobs_of, objects, sdk, sent

from ajet_core.errors import EngineFailedError
from ajet_server.gateway.dialects import chat
from ajet_server.gateway.dialects.chat import Parsed, parse
from ajet_server.gateway.request import Delta, ToolCall

CALLS = (ToolCall("call_a", "find", '{"q":"x"}'), ToolCall("call_b", "find", "{}"))
MESSAGES: Any = [{"role": "user", "content": "hello"}]


def asked(**fields: Any) -> Parsed:
    return parse({"model": "m", "messages": MESSAGES, "stream": True, **fields})


def chunk(*choices: Any, fingerprint: str | None = None, **fields: Any) -> dict[str, Any]:
    head = {"id": "call_1", "object": "chat.completion.chunk", "created": 7, "model": "m"}
    return head | {"system_fingerprint": fingerprint, "choices": list(choices)} | fields


def grown(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def function(index: int, call: ToolCall) -> dict[str, Any]:
    whole = {"name": call.name, "arguments": call.arguments}
    return {"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": whole}]}


def test_the_chunks_of_one_choice() -> None:
    deltas = [Delta(0, tokens=(1,)), Delta(0, "", "hm"), Delta(0, "hi", "", CALLS[:1]), Delta(0, tool_calls=CALLS[1:])]
    events = sent(chat, asked(), [STARTED, *deltas, answer_of(choice_of(deltas))])
    assert objects(events) == [
        chunk(grown(0, {"role": "assistant", "content": ""})),
        chunk(grown(0, {"reasoning_content": "hm"})),
        chunk(grown(0, {"content": "hi"})),
        chunk(grown(0, function(0, CALLS[0]))),
        chunk(grown(0, function(1, CALLS[1]))),
        chunk(grown(0, {}, "tool_calls"), fingerprint="weights-4"),
    ]


def test_choices_in_between_each_other_and_usage() -> None:
    deltas = [Delta(1, "b", tool_calls=CALLS[:1]), Delta(0, "a", tool_calls=CALLS[1:])]
    answer = answer_of(choice_of(deltas[1:]), choice_of(deltas[:1], 1))
    parsed = asked(n=2, stream_options={"include_usage": True})
    found = objects(sent(chat, parsed, [STARTED, *deltas, answer]))
    assert [item["choices"] for item in found] == [
        [grown(0, {"role": "assistant", "content": ""})],
        [grown(1, {"role": "assistant", "content": ""})],
        [grown(1, {"content": "b"})],
        [grown(1, function(0, CALLS[0]))],
        [grown(0, {"content": "a"})],
        [grown(0, function(0, CALLS[1]))],
        [grown(0, {}, "tool_calls")],
        [grown(1, {}, "tool_calls")],
        [],
    ]
    assert [item["usage"] for item in found[:-1]] == [None] * 8
    assert found[-1]["usage"] == chat.answer(parsed, answer)["usage"]


def test_nothing_says_done_before_the_answer() -> None:
    events = sent(chat, asked(), [STARTED, Delta(0, "hi")])
    assert b"[DONE]" not in events[-1]
    assert all(json.loads(data[6:])["choices"][0]["finish_reason"] is None for data in events)


def test_a_stream_begins_with_what_is_known_of_its_answer() -> None:
    with pytest.raises(TypeError, match="begins with Started"):
        sent(chat, asked(), [Delta(0, "hi")])


def test_tokens_and_logprobs_are_told_once_with_what_grew() -> None:
    deltas = [
        Delta(0, tokens=(1,), logprobs=logprobs_of([1])),
        Delta(0, "hi", "hm", CALLS[:1], tokens=(2, 3), logprobs=logprobs_of([2, 3])),
    ]
    parsed = asked(logprobs=True, top_logprobs=1, return_token_ids=True)
    found = objects(sent(chat, parsed, [STARTED, *deltas, answer_of(choice_of(deltas))]))
    assert [item.get("prompt_token_ids") for item in found] == [[5, 6, 7], *[None] * 5]
    choices = [item["choices"][0] for item in found]
    assert [choice.get("token_ids") for choice in choices] == [None, [1], [2, 3], None, None, None]
    told = [[entry["token"] for entry in (choice["logprobs"] or {"content": []})["content"]] for choice in choices]
    assert told == [[], ["t1"], ["t2", "t3"], [], [], []]
    assert choices[1]["delta"] == {}
    assert [choice.get("weight_versions") for choice in choices] == [*[None] * 5, [[0, 4]]]


def test_a_failure_is_raised_by_the_sdk() -> None:
    events = sent(chat, asked(), [STARTED, Delta(0, "hi")])
    failed = b"".join([*events, chat.failure(EngineFailedError("the worker died of \ud800"))])
    stream = sdk(failed, stream=True).chat.completions.create(model="m", messages=MESSAGES, stream=True)
    read: list[ChatCompletionChunk] = []
    with pytest.raises(APIError, match="the worker died") as caught:
        read.extend(stream)
    assert caught.value.code == "engine_failed"


texts = st.text(max_size=3)
token_lists = st.lists(st.integers(0, 9), max_size=2)


@st.composite
def streams(draw: Callable[..., Any]) -> tuple[int, list[Delta]]:
    n = draw(st.integers(1, 3))
    deltas: list[Delta] = []
    for number in range(draw(st.integers(0, 6))):
        calls = tuple(ToolCall(f"call_{number}", "f", '{"a":"é"}') for _ in range(draw(st.integers(0, 2))))
        tokens = tuple(draw(token_lists))
        deltas.append(Delta(draw(st.integers(0, n - 1)), draw(texts), draw(texts), calls, tokens, logprobs_of(tokens)))
    return n, deltas


@given(streams())
def test_the_sdk_puts_chunks_together_to_the_whole_answer(stream: tuple[int, list[Delta]]) -> None:
    n, deltas = stream
    answer = answer_of(*(choice_of([delta for delta in deltas if delta.index == index], index) for index in range(n)))
    parsed = asked(n=n, logprobs=True, top_logprobs=1, stream_options={"include_usage": True}, return_token_ids=True)
    events = sent(chat, parsed, [STARTED, *deltas, answer])
    token_ids: list[list[int]] = [[] for _ in range(n)]
    for found in objects(events):
        strict = ChatCompletionChunk.model_validate_json(json.dumps(found), strict=True)
        assert extras(strict) <= {
            "prompt_token_ids",
            "choices.token_ids",
            "choices.weight_versions",
            "choices.delta.reasoning_content",
        }
        for choice in found["choices"]:
            token_ids[choice["index"]] += choice.get("token_ids", [])
    assert token_ids == [choice.token_ids for choice in answer.choices]

    with sdk(b"".join(events), stream=True).chat.completions.stream(model="m", messages=MESSAGES, n=n) as read:
        final = read.get_final_completion().model_dump()
    whole = ChatCompletion.model_validate(chat.answer(parsed, answer)).model_dump()
    assert final["usage"] == whole["usage"]
    assert final["system_fingerprint"] == whole["system_fingerprint"]
    for built, choice in zip(final["choices"], whole["choices"], strict=True):
        for name in ("content", "reasoning_content"):
            assert (built["message"].get(name) or "") == (choice["message"].get(name) or "")
        assert _calls(built) == _calls(choice)
        assert built["finish_reason"] == choice["finish_reason"]
        assert (built["logprobs"] or {"content": []})["content"] == choice["logprobs"]["content"]


def _calls(choice: dict[str, Any]) -> list[Any]:
    calls = choice["message"]["tool_calls"] or []
    return [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]
