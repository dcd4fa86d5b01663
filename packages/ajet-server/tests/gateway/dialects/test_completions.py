"""The legacy Completions dialect."""

import json
from typing import Any

import numpy as np
import pytest
from openai.types import Completion
from openai.types.completion_create_params import CompletionCreateParamsNonStreaming
from openai_helpers import STARTED, answer_of, choice_of, extras, logprobs_of, objects, sdk, sent

from ajet_core.errors import EngineFailedError, RequestError
from ajet_server.gateway.dialects import completions
from ajet_server.gateway.dialects.completions import _OFF, Parsed, RequestBody, parse
from ajet_server.gateway.request import ChatRequest, Delta, RawPrompt, TokenLogprob


def asked(**fields: Any) -> Parsed:
    return parse({"model": "m", "prompt": "once", **fields})


def test_the_least_request() -> None:
    request = ChatRequest("m", RawPrompt("once"), max_tokens=16)
    assert asked() == Parsed(request, stream=False, include_usage=False)


@pytest.mark.parametrize("prompt", ["once", ["once"]])
def test_a_prompt_of_text(prompt: Any) -> None:
    assert asked(prompt=prompt).request.prompt == RawPrompt("once")


@pytest.mark.parametrize("prompt", [[0, 2**31 - 1], [[0, 2**31 - 1]]])
def test_a_prompt_of_ids(prompt: Any) -> None:
    ids = asked(prompt=prompt).request.prompt.content
    assert ids.dtype == np.int32
    assert ids.tolist() == [0, 2**31 - 1]


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"logprobs": 0}, {"logprobs": True}),
        ({"logprobs": 5}, {"logprobs": True, "top_logprobs": 5}),
        ({"n": 2, "seed": 3, "stop": "a", "top_k": 4}, {"n": 2, "seed": 3, "stop": ("a",), "top_k": 4}),
        ({"temperature": 0, "top_p": 1, "logit_bias": {"1": 2}}, {"temperature": 0.0, "logit_bias": ((1, 2.0),)}),
        ({"user": "me", "return_token_ids": True}, {"labels": {"user": "me"}, "return_token_ids": True}),
    ],
)
def test_accepted_fields(fields: dict[str, Any], found: dict[str, Any]) -> None:
    request, least = asked(**fields).request, asked().request
    for name in ChatRequest.__struct_fields__:
        assert getattr(request, name) == found.get(name, getattr(least, name))


ON: dict[str, Any] = {"presence_penalty": 1, "frequency_penalty": 1, "echo": True, "suffix": "end", "best_of": 2}


def test_every_field_that_is_not_served_has_a_case() -> None:
    assert ON.keys() == _OFF.keys()


@pytest.mark.parametrize("name", ON)
def test_what_is_not_served_is_refused_by_name(name: str) -> None:
    with pytest.raises(RequestError, match=rf"^{name}: .* is not served; leave it out") as caught:
        asked(**{name: ON[name]})
    assert caught.value.field == name
    for off in (*_OFF[name], None):
        assert asked(**{name: off}) == asked()


def test_every_field_of_the_official_api_is_known() -> None:
    official = CompletionCreateParamsNonStreaming.__annotations__.keys()
    assert {"prompt", "model", "stream"} <= official
    assert official <= RequestBody.model_fields.keys() | _OFF.keys()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [[1], [2]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**31]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": ""}, "stop"),
        ({"stream_options": {}}, "stream_options"),
        ({"messages": []}, "messages"),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        asked(**fields)
    assert caught.value.field == field
    assert caught.value.message.startswith(f"{field}: ")


TOKENS = (
    TokenLogprob(1, "é", -1.0, (("é", -1.0), ("\ufffd", -2.0), ("\ufffd", -3.0))),
    TokenLogprob(2, "ab", -4.0, (("c", float("-inf")),)),
)


def test_the_answer() -> None:
    choices = choice_of([Delta(0, "hi", tokens=(1, 2))]), choice_of([Delta(1, "ho")], 1, finish_reason="length")
    found = completions.answer(asked(n=2, return_token_ids=True), answer_of(*choices))
    assert found["object"] == "text_completion"
    assert found["prompt_token_ids"] == [5, 6, 7]
    weights = {"weight_versions": [[0, 4]]}
    assert found["choices"] == [
        {"index": 0, "text": "hi", "logprobs": None, "finish_reason": "stop", "token_ids": [1, 2]} | weights,
        {"index": 1, "text": "ho", "logprobs": None, "finish_reason": "length", "token_ids": []} | weights,
    ]
    strict = Completion.model_validate_json(json.dumps(found), strict=True)
    assert extras(strict) == {"prompt_token_ids", "choices.token_ids", "choices.weight_versions"}
    assert sdk(json.dumps(found).encode(), stream=False).completions.create(model="m", prompt="once") == strict


def test_logprobs() -> None:
    found = completions.answer(asked(logprobs=3), answer_of(choice_of([Delta(0, "éab", logprobs=TOKENS)])))
    assert found["choices"][0]["logprobs"] == {
        "tokens": ["é", "ab"],
        "token_logprobs": [-1.0, -4.0],
        "top_logprobs": [{"é": -1.0, "\ufffd": -2.0}, {"c": -9999.0, "ab": -4.0}],
        "text_offset": [0, 1],
    }
    Completion.model_validate_json(json.dumps(found), strict=True)


def test_logprobs_of_no_tokens() -> None:
    found = completions.answer(asked(logprobs=1), answer_of(choice_of([])))
    nothing = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    assert found["choices"][0]["logprobs"] == nothing


def test_a_stream() -> None:
    deltas = [Delta(0, tokens=(9,)), Delta(1, "é"), Delta(0, "a"), Delta(0, "b")]
    answer = answer_of(choice_of([deltas[0], *deltas[2:]]), choice_of(deltas[1:2], 1, finish_reason="length"))
    parsed = asked(n=2, stream=True, stream_options={"include_usage": True})
    events = sent(completions, parsed, [STARTED, *deltas, answer])
    client = sdk(b"".join(events), stream=True)
    read = list(client.completions.create(model="m", prompt="once", stream=True))
    choices = [(choice.index, choice.text, choice.finish_reason) for item in read for choice in item.choices]
    assert choices == [(1, "é", None), (0, "a", None), (0, "b", None), (0, "", "stop"), (1, "", "length")]
    assert read[-1].choices == []
    assert read[-1].usage is not None
    assert read[-1].usage.model_dump(exclude_none=True) == completions.answer(parsed, answer)["usage"]
    for found in objects(events):
        for choice in found["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"  # OpenAI sends null, which its type leaves out
        assert extras(Completion.model_validate_json(json.dumps(found), strict=True)) == set()


def test_a_stream_adds_up_to_the_answer() -> None:
    deltas = [
        Delta(0, tokens=(1,), logprobs=logprobs_of([1])),
        Delta(1, "b", tokens=(33,), logprobs=logprobs_of([33])),
        Delta(0, "a", tokens=(22, 3), logprobs=logprobs_of([22, 3])),
        Delta(0, "c", tokens=(4,), logprobs=logprobs_of([4])),
    ]
    of = [[delta for delta in deltas if delta.index == index] for index in (0, 1)]
    answer = answer_of(choice_of(of[0]), choice_of(of[1], 1))
    parsed = asked(n=2, stream=True, logprobs=1, return_token_ids=True)
    found = objects(sent(completions, parsed, [STARTED, *deltas, answer]))
    assert [item.get("prompt_token_ids") for item in found] == [[5, 6, 7], *[None] * 5]
    for whole in completions.answer(parsed, answer)["choices"]:
        mine = [choice for item in found for choice in item["choices"] if choice["index"] == whole["index"]]
        assert "".join(choice["text"] for choice in mine) == whole["text"]
        assert [token for choice in mine for token in choice.get("token_ids", [])] == whole["token_ids"]
        for name, values in whole["logprobs"].items():
            assert [value for choice in mine for value in (choice["logprobs"] or {name: []})[name]] == values


def test_a_failure_is_an_event() -> None:
    event = completions.failure(EngineFailedError("the worker died"))
    assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == "engine_failed"
