"""Answers of the Messages dialect, whole and streamed."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from messages_helpers import CALL, answer_of, choice, choices, decode, deltas_of, parsed, stream

from ajet_core.errors import AjetError, EngineFailedError, EpisodeClosedError, RequestError, UnavailableError
from ajet_merge.messages import canonical_message
from ajet_server.gateway.dialects.messages import answer, count, error_body, failure, parse
from ajet_server.gateway.dialects.messages.conversation import signature_of
from ajet_server.gateway.request import Choice, Conversation, Delta

USAGE = {
    "input_tokens": 1,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 3,
    "output_tokens": 3,
    "output_tokens_details": {"thinking_tokens": 0},
}


def whole(found: Choice, return_token_ids: bool = False) -> dict[str, Any]:
    return answer(parsed(return_token_ids), answer_of(found))


def test_the_least_answer() -> None:
    assert whole(choice()) == {
        "id": "call_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "Hi."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": USAGE,
    }


def test_all_kinds_of_blocks() -> None:
    found = whole(choice(reasoning="hm", tool_calls=(CALL,), finish_reason="tool_calls", reasoning_tokens=1))
    assert found["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": signature_of("hm")},
        {"type": "text", "text": "Hi."},
        {"type": "tool_use", "id": "call_a", "name": "add", "input": {"x": 1}},
    ]
    assert found["usage"]["output_tokens_details"] == {"thinking_tokens": 1}


@pytest.mark.parametrize(
    ("finish", "stop", "reason", "sequence"),
    [
        ("stop", None, "end_turn", None),
        ("stop", "END", "stop_sequence", "END"),
        ("length", None, "max_tokens", None),
        ("tool_calls", None, "tool_use", None),
        ("tool_calls", "END", "tool_use", None),
    ],
)
def test_why_it_ended(finish: str, stop: str | None, reason: str, sequence: str | None) -> None:
    found = whole(choice(finish_reason=finish, stop=stop))
    assert (found["stop_reason"], found["stop_sequence"]) == (reason, sequence)


def test_token_ids() -> None:
    found = whole(choice(), return_token_ids=True)
    assert (found["prompt_token_ids"], found["token_ids"]) == ([1, 2, 3, 4], [7, 8, 9])
    assert found["weight_versions"] == [[0, 2]]
    first, *_, last, _ = decode(stream(choice(), deltas_of(choice()), parsed(return_token_ids=True)))
    assert (first["message"]["prompt_token_ids"], last["token_ids"]) == ([1, 2, 3, 4], [7, 8, 9])


def test_a_count() -> None:
    assert count(5) == {"input_tokens": 5}


def test_the_order_of_events() -> None:
    found = choice("Hi.", reasoning="hm", tool_calls=(CALL,), finish_reason="tool_calls")
    events = decode(stream(found, deltas_of(found)))
    assert [(event["type"], event.get("index")) for event in events] == [
        ("message_start", None),
        ("ping", None),
        ("content_block_start", 0),
        ("content_block_delta", 0),
        ("content_block_delta", 0),
        ("content_block_stop", 0),
        ("content_block_start", 1),
        ("content_block_delta", 1),
        ("content_block_delta", 1),
        ("content_block_stop", 1),
        ("content_block_start", 2),
        ("content_block_delta", 2),
        ("content_block_stop", 2),
        ("message_delta", None),
        ("message_stop", None),
    ]
    assert events[0]["message"] == {
        "id": "call_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 4, "output_tokens": 0},
    }
    assert events[4]["delta"] == {"type": "signature_delta", "signature": signature_of("hm")}
    assert events[11]["delta"] == {"type": "input_json_delta", "partial_json": CALL.arguments}
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert events[-2]["usage"] == USAGE


def test_an_empty_stream() -> None:
    kinds = [event["type"] for event in decode(stream(choice(""), []))]
    assert kinds == ["message_start", "ping", "message_delta", "message_stop"]


def test_thinking_between_texts_is_signed_by_itself() -> None:
    deltas = [Delta(0, reasoning="a"), Delta(0, text="b"), Delta(0, reasoning="c"), Delta(0, text="d")]
    events = decode(stream(choice("bd", reasoning="ac"), deltas))
    signed = [event["delta"]["signature"] for event in events if event.get("delta", {}).get("signature")]
    assert signed == [signature_of("a"), signature_of("c")]


@settings(deadline=None)
@given(choices, st.integers(1, 12))
def test_the_stream_adds_up_to_the_answer(found: Choice, size: int) -> None:
    message: dict[str, Any] = {}
    for event in decode(stream(found, deltas_of(found, size))):
        _add(message, event)
    assert message == whole(found)


def _add(message: dict[str, Any], event: dict[str, Any]) -> None:
    """What a client does with an event."""
    match event["type"]:
        case "message_start":
            message |= event["message"]
        case "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"] | {"json": ""})
        case "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            for name, target in (("text", "text"), ("thinking", "thinking"), ("partial_json", "json")):
                if name in delta:
                    block[target] += delta[name]
            block |= {"signature": delta["signature"]} if "signature" in delta else {}
        case "content_block_stop":
            block = message["content"][event["index"]]
            text = block.pop("json")
            block |= {"input": json.loads(text)} if text else {}
        case "message_delta":
            message |= event["delta"] | {"usage": event["usage"]}


@settings(deadline=None)
@given(choices)
def test_an_answer_sent_back_is_the_message_that_was_recorded(found: Choice) -> None:
    """To the forest, that is: arguments come back as an object, so how they were spaced is lost."""
    sent = [{"role": "assistant", "content": whole(found)["content"]}, {"role": "user", "content": "go on"}]
    prompt = parse({"model": "m", "max_tokens": 1, "messages": sent}, thinks=False).request.prompt
    assert isinstance(prompt, Conversation)
    assert canonical_message(prompt.messages[0]) == canonical_message(found.message())


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (EngineFailedError("x"), "api_error"),
        (UnavailableError("x"), "overloaded_error"),
        (EpisodeClosedError("x"), "permission_error"),
        (RequestError("x"), "invalid_request_error"),
    ],
)
def test_a_failure_in_a_stream(error: AjetError, kind: str) -> None:
    (event,) = decode(failure(error))
    assert event.pop("request_id").startswith("req_")
    assert event == {"type": "error", "error": {"type": kind, "message": "x", "details": {"error_code": error.code}}}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (409, "invalid_request_error"),
        (410, "permission_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
    ],
)
def test_types_of_errors(status: int, kind: str) -> None:
    assert error_body("x", "c", status)["error"]["type"] == kind
