"""Chat Completions, answered: bodies as the OpenAI SDK reads them."""

import json
from typing import Any

from openai.types.chat import ChatCompletion
from openai_helpers import answer_of, choice_of, extras, logprobs_of, sdk

from ajet_core.errors import EpisodeClosedError, NotFoundError, StorageError, UnavailableError
from ajet_server.gateway.dialects import chat
from ajet_server.gateway.dialects.chat.answer import error_body
from ajet_server.gateway.request import Answer, Delta, TokenLogprob, ToolCall

CALL = ToolCall("call_a", "find", '{"q":"x"}')


def body(answer: Answer, **fields: Any) -> dict[str, Any]:
    raw = {"model": "m", "messages": [{"role": "user", "content": "hello"}], **fields}
    return json.loads(json.dumps(chat.answer(chat.parse(raw), answer)))


def test_the_answer() -> None:
    found = body(answer_of(choice_of([Delta(0, "hi", tokens=(1, 2))])))
    assert found == {
        "id": "call_1",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hi", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 2},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
        "system_fingerprint": "weights-4",
    }


def test_thinking_and_tool_calls() -> None:
    found = body(answer_of(choice_of([Delta(0, "", "hm", (CALL,), (1, 2, 3))], reasoning_tokens=2)))
    function = {"name": "find", "arguments": '{"q":"x"}'}
    assert found["choices"][0]["message"] == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "tool_calls": [{"id": "call_a", "type": "function", "function": function}],
        "refusal": None,
    }
    assert found["choices"][0]["finish_reason"] == "tool_calls"
    assert found["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}


def test_no_text_is_still_text_without_tool_calls() -> None:
    assert body(answer_of(choice_of([])))["choices"][0]["message"]["content"] == ""


def test_text_beside_tool_calls_is_kept() -> None:
    assert body(answer_of(choice_of([Delta(0, "so", "", (CALL,))])))["choices"][0]["message"]["content"] == "so"


def test_logprobs() -> None:
    tokens = (
        TokenLogprob(1, "é", -1.0, (("é", -1.0), ("\ufffd", float("-inf")))),
        TokenLogprob(2, "\ufffd", -2.0),
    )
    found = body(answer_of(choice_of([Delta(0, "é", tokens=(1, 2), logprobs=tokens)])), logprobs=True, top_logprobs=2)
    assert found["choices"][0]["logprobs"] == {
        "content": [
            {
                "token": "é",
                "logprob": -1.0,
                "bytes": [195, 169],
                "top_logprobs": [
                    {"token": "é", "logprob": -1.0, "bytes": [195, 169]},
                    {"token": "\ufffd", "logprob": -9999.0, "bytes": None},
                ],
            },
            {"token": "\ufffd", "logprob": -2.0, "bytes": None, "top_logprobs": []},
        ],
        "refusal": None,
    }


def test_token_ids() -> None:
    found = body(answer_of(choice_of([Delta(0, tokens=(1, 2))]), choice_of([], 1)), n=2, return_token_ids=True)
    assert found["prompt_token_ids"] == [5, 6, 7]
    assert [choice["token_ids"] for choice in found["choices"]] == [[1, 2], []]


def test_an_answer_of_several_versions_says_so() -> None:
    answer = answer_of(choice_of([Delta(0, tokens=(1, 2))], versions=((0, 4), (1, 6))), choice_of([], 1))
    found = body(answer, n=2, return_token_ids=True)
    assert found["system_fingerprint"] == "weights-4+6"
    assert [choice["weight_versions"] for choice in found["choices"]] == [[[0, 4], [1, 6]], [[0, 4]]]


def test_the_sdk_knows_every_field() -> None:
    full = Delta(0, "hi", "hm", (CALL,), (1, 2), logprobs_of([1, 2]))
    answer = answer_of(choice_of([full]), choice_of([full], 1, finish_reason="length"))
    found = body(answer, n=2, logprobs=True, top_logprobs=1, return_token_ids=True)
    strict = ChatCompletion.model_validate_json(json.dumps(found), strict=True)
    assert extras(strict) == {
        "prompt_token_ids", "choices.token_ids", "choices.weight_versions", "choices.message.reasoning_content",
    }  # fmt: skip
    client = sdk(json.dumps(found).encode(), stream=False)
    read = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])
    assert read == strict
    assert [choice.finish_reason for choice in read.choices] == ["tool_calls", "length"]


def test_errors() -> None:
    assert error_body("n: got 0", "invalid_request", 400, "n") == {
        "error": {"message": "n: got 0", "type": "invalid_request_error", "param": "n", "code": "invalid_request"}
    }
    kinds = [error_body("no", kind.code, kind.status)["error"]["type"] for kind in (NotFoundError, EpisodeClosedError)]
    assert kinds == ["not_found_error", "permission_error"]
    kinds = [error_body("no", kind.code, kind.status)["error"]["type"] for kind in (StorageError, UnavailableError)]
    assert kinds == ["server_error", "server_error"]
