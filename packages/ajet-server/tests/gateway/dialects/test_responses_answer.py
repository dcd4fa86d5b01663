"""Answers of the Responses dialect, whole and streamed, as OpenAI's SDK understands them."""

import json
from collections.abc import Iterable
from typing import Any

import openai
import openai_helpers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseErrorEvent, ResponseStreamEvent
from openai_helpers import extras, sdk
from pydantic import BaseModel, TypeAdapter

from ajet_core.errors import EngineFailedError, RequestError
from ajet_server.gateway.dialects import responses
from ajet_server.gateway.dialects.responses import Parsed
from ajet_server.gateway.request import Answer, Choice, Conversation, Delta, Item, Started, TokenLogprob, ToolCall

ID = "call_" + "a" * 24
TOOL = {"type": "function", "name": "f", "description": None, "parameters": {"type": "object"}, "strict": False}
CALLS = (ToolCall("c1", "f", '{"x": 1}'), ToolCall("c2", "f", "{}"))
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
BEGUN = ["response.created", "response.in_progress"]
THOUGHT = ["response.reasoning_text.delta", "response.reasoning_text.done"]
SAID = ["response.output_text.delta", "response.output_text.done"]
EVENT = TypeAdapter[Any](ResponseStreamEvent)
CALLED = ["response.function_call_arguments.delta", "response.function_call_arguments.done"]


def parse(**fields: Any) -> Parsed:
    return responses.parse({"model": "m", "input": "hello", "tools": [TOOL], **fields}, lambda _: [])


def token(number: int) -> TokenLogprob:
    return TokenLogprob(
        number, f"t{number}", -float(number), ((f"t{number}", -float(number)), ("\ufffd", -float("inf")))
    )


def grown(
    *parts: tuple[str, str], calls: tuple[ToolCall, ...] = (), logprobs: bool = False, cut: bool = False
) -> list[Any]:
    """The stream of an answer that grew by these parts, a token each, and a last token behind its calls or end."""
    tokens = tuple(range(len(parts) + 1))
    deltas = [
        Delta(0, tokens=(number,), logprobs=(token(number),) * logprobs, **{kind: words})
        for number, (kind, words) in enumerate(parts)
    ]
    deltas.append(Delta(0, tool_calls=calls, tokens=tokens[-1:], logprobs=(token(tokens[-1]),) * logprobs))
    choice = Choice(
        index=0,
        call_id=ID,
        text="".join(words for kind, words in parts if kind == "text"),
        reasoning="".join(words for kind, words in parts if kind == "reasoning"),
        tool_calls=calls,
        malformed_tool_calls=0,
        finish_reason="length" if cut else "tool_calls" if calls else "stop",
        stop=None,
        token_ids=list(tokens),
        logprobs=tuple(map(token, tokens)) if logprobs else (),
        reasoning_tokens=sum(kind == "reasoning" for kind, _ in parts),
    )
    return [Started(ID, 17, "m", 3, [7, 8, 9]), *deltas, Answer(ID, 17, "m", (choice,), 3, [7, 8, 9], 2, 4)]


def sent(parsed: Parsed, items: Iterable[Item]) -> list[bytes]:
    return openai_helpers.sent(responses, parsed, items)


def decoded(events: Iterable[bytes]) -> list[dict[str, Any]]:
    """The data of events, one each, each named as its type says."""
    found: list[dict[str, Any]] = []
    for event in events:
        head, data, *rest = event.decode().split("\n")
        assert rest == ["", ""]
        found.append(json.loads(data.removeprefix("data: ")))
        assert head == f"event: {found[-1]['type']}"
    return found


def answered(*parts: tuple[str, str], asked: dict[str, Any] | None = None, **how: Any) -> dict[str, Any]:
    *_, answer = grown(*parts, **how)
    return responses.answer(parse(**asked or {}), answer)


def test_the_answer() -> None:
    body = answered(("reasoning", "hm"), ("text", "hi"), calls=CALLS, asked={"instructions": "i", "user": "u"})
    response = Response.model_validate(body, strict=True)
    assert extras(response) == {"store"}
    assert (response.id, response.status, response.created_at) == (f"resp_{ID}", "completed", 17)
    assert (response.instructions, response.user, response.model) == ("i", "u", "m")
    assert response.output_text == "hi"
    assert [item["type"] for item in body["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert [item["status"] for item in body["output"]] == ["completed"] * 4
    assert body["output"][0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert body["output"][0]["encrypted_content"] is None
    assert [item["call_id"] for item in body["output"][2:]] == ["c1", "c2"]
    assert len({item["id"] for item in body["output"]}) == 4
    assert body["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 6,
    }


@pytest.mark.parametrize(
    ("parts", "how", "types"),
    [
        ([], {}, ["message"]),
        ([("reasoning", "hm")], {}, ["reasoning", "message"]),
        ([("reasoning", "hm")], {"cut": True}, ["reasoning"]),
        ([], {"calls": CALLS[:1]}, ["function_call"]),
        ([("text", "hi")], {"cut": True, "calls": CALLS[:1]}, ["message", "function_call"]),
    ],
)
def test_which_items_there_are(parts: list[tuple[str, str]], how: dict[str, Any], types: list[str]) -> None:
    body = answered(*parts, **how)
    assert [item["type"] for item in body["output"]] == types
    assert body["status"] == ("incomplete" if how.get("cut") else "completed")
    assert body["incomplete_details"] == ({"reason": "max_output_tokens"} if how.get("cut") else None)
    whole = not how.get("cut") or "calls" in how
    assert body["output"][-1]["status"] == ("completed" if whole else "incomplete")
    assert decoded(sent(parse(), grown(*parts, **how)))[-1]["response"] == body


def test_what_is_there_only_if_asked_for() -> None:
    body = answered(("text", "hi"), logprobs=True, asked=LOGPROBS | {"return_token_ids": True})
    Response.model_validate(body, strict=True)
    assert (body["prompt_token_ids"], body["token_ids"]) == ([7, 8, 9], [0, 1])
    entries = body["output"][0]["content"][0]["logprobs"]
    assert [entry["logprob"] for entry in entries] == [0.0, -1.0]
    assert entries[1]["bytes"] == list(b"t1")
    assert entries[1]["top_logprobs"][1] == {"token": "\ufffd", "logprob": -9999.0, "bytes": []}
    assert "token_ids" not in answered(("text", "hi"))


def test_the_order_of_events() -> None:
    parts = [("reasoning", "h"), ("reasoning", "m"), ("text", "h"), ("text", "i")]
    events = decoded(sent(parse(), grown(*parts, calls=CALLS[:1])))
    assert [event["type"] for event in events] == [
        *BEGUN,
        *("response.output_item.added", "response.content_part.added", THOUGHT[0], *THOUGHT),
        *("response.content_part.done", "response.output_item.done"),
        *("response.output_item.added", "response.content_part.added", SAID[0], *SAID),
        *("response.content_part.done", "response.output_item.done"),
        *("response.output_item.added", *CALLED, "response.output_item.done"),
        "response.completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["output_index"] for event in events[2:-1]] == [0] * 7 + [1] * 7 + [2] * 4


def test_nothing_of_a_message_or_a_call_is_done_before_the_answer() -> None:
    events = decoded(sent(parse(), grown(("reasoning", "hm"), ("text", "hi"), calls=CALLS)[:-1]))
    assert [event["type"] for event in events if event["type"].endswith(".done")] == [
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    assert {event["item"]["type"] for event in events if "item" in event} == {"reasoning", "message"}


parts = st.lists(st.tuples(st.sampled_from(["reasoning", "text"]), st.text(min_size=1, max_size=5)), max_size=6)
options = st.fixed_dictionaries(
    {"calls": st.sampled_from([(), CALLS[:1], CALLS]), "logprobs": st.booleans(), "cut": st.booleans()}
)


@settings(deadline=None, max_examples=50)
@given(parts, options, st.booleans())
def test_a_stream_adds_up_to_the_answer(parts: list[tuple[str, str]], options: dict[str, Any], sealed: bool) -> None:
    include = ["message.output_text.logprobs"] * options["logprobs"] + ["reasoning.encrypted_content"] * sealed
    parsed = parse(include=include, return_token_ids=True, stream=True)
    items = grown(*parts, **options)
    events = decoded(sent(parsed, items))
    for event in events:
        known = EVENT.validate_python(event, strict=True)
        assert known.type == event["type"]
        allowed = {"store", "token_ids", "weight_versions", "prompt_token_ids", "name", "bytes"}
        assert {name.rpartition(".")[2] for name in extras(known)} <= allowed
    last, whole = events[-1]["response"], responses.answer(parsed, items[-1])
    assert last | {"output": []} == whole | {"output": []}
    assert [token for event in events for token in event.get("token_ids", ())] == whole["token_ids"]
    assert as_message(last["output"]) == as_message(whole["output"]) == [items[-1].choices[0].message()]
    if [kind for kind, _ in parts] == sorted(kind for kind, _ in parts):  # thinking first, as models do
        assert last["output"] == whole["output"]
    for index, item in enumerate(last["output"]):
        check_deltas(item, [event for event in events if event.get("output_index") == index])


def as_message(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items as the next request sends them."""
    prompt = responses.parse({"model": "m", "input": output}, lambda _: []).request.prompt
    assert isinstance(prompt, Conversation)
    return prompt.messages


def check_deltas(item: dict[str, Any], events: list[dict[str, Any]]) -> None:
    added, *_, done = events
    assert added["item"]["status"] == "in_progress"
    assert done["item"] == item
    deltas = [event for event in events if event["type"].endswith(".delta")]
    words = "".join(event["delta"] for event in deltas)
    assert words == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
    if item["type"] == "message":
        assert [entry for event in deltas for entry in event["logprobs"]] == item["content"][0]["logprobs"]


@settings(deadline=None, max_examples=50)
@given(parts, options)
def test_the_sdk_understands_the_stream(parts: list[tuple[str, str]], options: dict[str, Any]) -> None:
    items = grown(*parts, **options)
    choice = items[-1].choices[0]
    body = b"".join(sent(parse(stream=True), items))
    with sdk(body, stream=True).responses.stream(model="m", input="hello", tools=[TOOL]) as stream:
        events = list(stream)
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == choice.text
        if options["cut"]:
            assert events[-1].type == "response.incomplete"
            return
        final = stream.get_final_response()
    assert final.output_text == choice.text
    calls = [item for item in final.output if item.type == "function_call"]
    assert [(call.call_id, call.name, call.arguments) for call in calls] == [
        (call.id, call.name, call.arguments) for call in choice.tool_calls
    ]


def test_the_sdk_understands_the_answer() -> None:
    body = json.dumps(answered(("reasoning", "hm"), ("text", "hi"))).encode()
    response = sdk(body, stream=False).responses.create(model="m", input="hello")
    assert response.output_text == "hi"
    assert as_message([item.to_dict() for item in response.output]) == [
        {"role": "assistant", "content": "hi", "reasoning_content": "hm"}
    ]


def test_what_the_sdk_parses_into_a_model() -> None:
    class Found(BaseModel):
        x: int

    body = b"".join(sent(parse(stream=True), grown(("text", '{"x"'), ("text", ": 5}"))))
    with sdk(body, stream=True).responses.stream(model="m", input="hello", text_format=Found) as stream:
        assert stream.get_final_response().output_parsed == Found(x=5)


def test_the_sdk_raises_a_failure() -> None:
    begun = sent(parse(stream=True), grown(("text", "hi"))[:2])
    failed = responses.failure(EngineFailedError("the worker died"))
    with sdk(b"".join(begun) + failed, stream=True) as client:
        stream = client.responses.create(model="m", input="hello", stream=True)
        with pytest.raises(openai.APIError, match="the worker died") as caught:
            list(stream)
    assert caught.value.code == "engine_failed"


def test_a_failure_is_an_event_of_the_api() -> None:
    (event,) = decoded([responses.failure(RequestError("no", field="input"))])
    known = ResponseErrorEvent.model_validate(event, strict=True)
    assert (known.code, known.message, known.param, known.sequence_number) == ("invalid_request", "no", "input", 0)
    assert event["error"]["type"] == "invalid_request_error"
