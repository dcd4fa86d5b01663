"""The Messages dialect as Anthropic's own SDK reads it."""

import json
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from messages_helpers import CALL, answer_of, choice, choices, deltas_of, parsed, stream

from ajet_core.errors import AjetError, EngineFailedError, EpisodeClosedError, UnavailableError
from ajet_server.gateway.dialects.messages import answer, count, error_body, failure, parse
from ajet_server.gateway.request import Choice, Conversation

anthropic = pytest.importorskip("anthropic")

ASKED: dict[str, Any] = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}


class Wire:
    """Answers every request of a client with what it is told to, and keeps what it was asked."""

    def __init__(self) -> None:
        self.content = b""
        self.status = 200
        self.asked: list[httpx2.Request] = []
        http = httpx2.Client(transport=httpx2.MockTransport(self._answer))
        self.client = anthropic.Anthropic(base_url="http://wire", api_key="k", max_retries=0, http_client=http)

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request)
        kind = "text/event-stream" if self.content.startswith(b"event") else "application/json"
        return httpx2.Response(self.status, content=self.content, headers={"content-type": kind})


WIRE = Wire()


def created(found: Choice, return_token_ids: bool = False) -> Any:
    WIRE.content = json.dumps(answer(parsed(return_token_ids), answer_of(found))).encode()
    return WIRE.client.messages.create(**ASKED)


def streamed(found: Choice, return_token_ids: bool = False) -> Any:
    WIRE.content = stream(found, deltas_of(found), parsed(return_token_ids))
    with WIRE.client.messages.stream(**ASKED) as events:
        return events.get_final_message()


@settings(deadline=None)
@given(choices)
def test_streamed_and_whole_are_the_same_valid_message(found: Choice) -> None:
    one, other = created(found), streamed(found)
    anthropic.types.Message.model_validate(one.model_dump(), strict=True)
    assert not one.model_extra
    assert all(not block.model_extra for block in one.content)
    assert one.model_dump(exclude_none=True) == other.model_dump(exclude_none=True)


@settings(deadline=None)
@given(choices)
def test_every_event_is_valid(found: Choice) -> None:
    WIRE.content = stream(found, deltas_of(found))
    for event in WIRE.client.messages.create(**ASKED, stream=True):
        type(event).model_validate(event.model_dump(), strict=True)
        assert not event.model_extra
        assert type(event).__name__.startswith("Raw")


def test_token_ids_come_with_both() -> None:
    whole, piecewise = created(choice(), True), streamed(choice(), True)
    assert whole.prompt_token_ids == piecewise.prompt_token_ids == [1, 2, 3, 4]
    assert whole.token_ids == [7, 8, 9]


def test_a_message_sent_back() -> None:
    """The way that the SDK documents: the answer's content is the content of the next request's message."""
    found = choice(reasoning="hm", tool_calls=(CALL,), finish_reason="tool_calls")
    for message in (created(found), streamed(found)):
        history = [
            *ASKED["messages"],
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": CALL.id, "content": "3"}]},
        ]
        WIRE.client.messages.create(**ASKED | {"messages": history})
        sent = json.loads(WIRE.asked[-1].content)
        prompt = parse(sent, thinks=False).request.prompt
        assert isinstance(prompt, Conversation)
        assert prompt.messages[1]["reasoning_content"] == "hm"
        assert prompt.messages[1]["tool_calls"][0]["function"]["arguments"] == '{"x": 1}'


def test_a_count() -> None:
    WIRE.content = json.dumps(count(5)).encode()
    asked = {name: value for name, value in ASKED.items() if name != "max_tokens"}
    assert WIRE.client.messages.count_tokens(**asked).input_tokens == 5


@pytest.mark.parametrize("error", [EngineFailedError("x"), UnavailableError("x"), EpisodeClosedError("x")])
def test_a_stream_that_fails(error: AjetError) -> None:
    whole = stream(choice(), deltas_of(choice()))
    WIRE.content = whole[: whole.index(b"event: message_delta")] + failure(error)
    with pytest.raises(anthropic.APIStatusError, match="x") as caught, WIRE.client.messages.stream(**ASKED) as events:
        events.get_final_message()
    assert caught.value.error_code == error.code


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "BadRequestError"),
        (401, "AuthenticationError"),
        (403, "PermissionDeniedError"),
        (404, "NotFoundError"),
        (410, "APIStatusError"),
        (413, "ContentTooLargeError"),
        (500, "InternalServerError"),
        (503, "ServiceUnavailableError"),
    ],
)
def test_errors(status: int, kind: str) -> None:
    wire = Wire()
    body = error_body("what was wrong", "a_code", status)
    if status != 413:  # the SDK's types leave out request_too_large, which the API documents
        anthropic.types.ErrorResponse.model_validate(body)
    wire.status, wire.content = status, json.dumps(body).encode()
    with pytest.raises(anthropic.APIStatusError) as caught:
        wire.client.messages.create(**ASKED)
    assert type(caught.value).__name__ == kind
    assert (caught.value.api_message, caught.value.error_code) == ("what was wrong", "a_code")
