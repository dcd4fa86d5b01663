"""What an agent may ask for, and what the engine is then told."""

import json
from typing import Any

import pytest

from ajet_core.errors import BudgetError, PromptTooLongError, RequestError
from ajet_server.gateway.request import ChatRequest, Conversation, ResponseFormat
from ajet_server.gateway.sampling import Room, check_trainable, sampling_of


def _request(**fields: Any) -> ChatRequest:
    return ChatRequest("m", Conversation([{"role": "user", "content": "hi"}]), **fields)


@pytest.mark.parametrize(
    ("room", "fields", "prompt", "expected"),
    [
        (Room(100, 64, None), {}, 10, 64),
        (Room(100, 64, None), {}, 50, 50),
        (Room(100, 64, None), {"max_tokens": 7}, 10, 7),
        (Room(None, 64, None), {}, 10**6, 64),
        (Room(None, 64, 10), {}, 5, 10),
        (Room(None, 64, 10), {"max_tokens": 30}, 5, 10),
        (Room(None, 64, 10), {"n": 3}, 5, 3),
    ],
)
def test_how_much_may_be_sampled(room: Room, fields: dict[str, Any], prompt: int, expected: int) -> None:
    assert room.max_tokens(_request(**fields), prompt) == expected


@pytest.mark.parametrize(
    ("room", "fields", "error", "words"),
    [
        (Room(100, 64, None), {"max_tokens": 65}, RequestError, "max_tokens: 65 exceeds"),
        (Room(100, 64, None), {}, PromptTooLongError, "the prompt has 100 tokens, the context is 100"),
        (Room(100, 64, None), {"max_tokens": 20}, PromptTooLongError, "has 100 tokens and max_tokens=20"),
        (Room(None, 64, 0), {}, BudgetError, "max_episode_tokens"),
        (Room(None, 64, 2), {"n": 3}, BudgetError, "max_episode_tokens"),
    ],
)
def test_what_does_not_fit(room: Room, fields: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        room.max_tokens(_request(**fields), 100)


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("temperature", {"temperature": 0.0}),
        ("top_p", {"top_p": 0.9}),
        ("top_k", {"top_k": 5}),
        ("logit_bias", {"logit_bias": ((3, 1.0),)}),
        ("response_format", {"response_format": ResponseFormat(None)}),
    ],
)
def test_what_cannot_be_trained(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="kind='eval'") as caught:
        check_trainable(_request(**fields))
    assert caught.value.field == field
    check_trainable(_request(temperature=0.7, stop=("x",), seed=3, n=4))


def test_what_the_engine_is_told() -> None:
    schema = {"type": "object"}
    request = _request(
        temperature=0.5, stop=("x",), seed=2**63 - 1, top_logprobs=3, response_format=ResponseFormat(schema)
    )
    told = sampling_of(request, 9, 1)
    assert (told.max_tokens, told.temperature, told.stop, told.seed) == (9, 0.5, ("x",), 0)
    assert told.top_logprobs == 0, "log-probabilities were not asked for"
    assert told.json_schema is not None
    assert json.loads(told.json_schema) == schema
    assert sampling_of(_request(logprobs=True, top_logprobs=3), 9, 0).top_logprobs == 3
    assert sampling_of(_request(response_format=ResponseFormat(None)), 9, 0).json_schema == "{}"
