"""`/v1` on a real socket."""

import json
import threading
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from api_helpers import HELLO, Api, bearer, openais, wait_for
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def eval_key(api: Api) -> str:
    return api.open(kind="eval")["api_key"]


def test_a_call(api: Api) -> None:
    grant = api.open()
    answer = api.chat(grant["api_key"], logprobs=True, top_logprobs=2)
    assert answer.status_code == 200
    body = answer.json()
    assert body["usage"]["completion_tokens"] == 3 == len(body["choices"][0]["logprobs"]["content"])
    assert body["system_fingerprint"] == "weights-0"
    view = api.finish(grant).json()
    assert (view["calls"], view["completion_tokens"], view["prompt_tokens"]) == (1, 3, body["usage"]["prompt_tokens"])


def test_the_sdk(api: Api) -> None:
    grant = api.open()
    with openai.OpenAI(
        base_url=grant["base_url"].replace("localhost", "127.0.0.1"), api_key=grant["api_key"]
    ) as client:
        answer = client.chat.completions.create(**HELLO)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 3
        assert [model.id for model in client.models.list()] == ["tiny"]
        with pytest.raises(openai.BadRequestError, match="audio"):
            client.chat.completions.create(**HELLO, audio={"voice": "alloy", "format": "mp3"})


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Basic abc"},
        bearer("sk-wrong"),
        {"Authorization": b"Bearer \xff\xfe"},
        {"x-api-key": "sk-wrong"},
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models"])
def test_a_wrong_key(api: Api, headers: dict[str, Any], path: str) -> None:
    answer = api.http.request("GET" if path == "/v1/models" else "POST", path, headers=headers)
    assert answer.status_code == 401
    assert openais(answer)["type"] == "authentication_error"


def test_models_are_listed_in_the_form_of_each_sdk(api: Api) -> None:
    key = api.open(kind="eval")["api_key"]
    with openai.OpenAI(base_url=f"{api.url}/v1", api_key=key) as client:
        (listed,) = client.models.list()
        assert (listed.id, listed.object, listed.owned_by) == ("tiny", "model", "ajet")
        assert client.models.retrieve("tiny") == listed
    with anthropic.Anthropic(base_url=api.url, api_key=key) as client:
        (model,) = client.models.list()
        assert (model.id, model.type, model.display_name, model.created_at.year) == ("tiny", "model", "tiny", 1970)
        assert client.models.retrieve("tiny") == model


def test_a_control_key_generates_nothing(api: Api) -> None:
    assert api.chat(api.open()["control_key"]).status_code == 401


def test_a_closed_episode(api: Api) -> None:
    grant = api.open()
    assert api.control(grant, "abort", json={}).status_code == 200
    answer = api.chat(grant["api_key"])
    assert answer.status_code == 410
    assert openais(answer)["code"] == "episode_closed"
    assert "x-should-retry" not in answer.headers
    assert api.http.get("/v1/models", headers=bearer(grant["api_key"])).status_code == 200


def test_a_late_result_is_fenced_off(api: Api) -> None:
    grant = api.open()
    before = len(api.worker.log("generate"))
    api.worker.hold()
    answers: list[httpx2.Response] = []
    caller = threading.Thread(target=lambda: answers.append(api.chat(grant["api_key"])))
    caller.start()
    wait_for(lambda: len(api.worker.log("generate")) > before)
    assert api.finish(grant).status_code == 503, "a call is running"
    assert api.control(grant, "abort", json={"reason": "the test"}).status_code == 200
    api.worker.release()
    caller.join(20)
    assert answers[0].status_code == 410
    view = api.http.get(f"/api/episodes/{grant['episode_id']}", headers=bearer(grant["control_key"])).json()
    assert (view["status"], view["calls"]) == ("aborted", 0)


def test_a_caller_that_leaves_frees_its_slot(api: Api) -> None:
    grant = api.open()
    before = len(api.worker.log("cancel"))
    api.worker.hold()
    with pytest.raises(httpx2.ReadTimeout):
        api.http.post("/v1/chat/completions", json=HELLO, headers=bearer(grant["api_key"]), timeout=0.3)
    wait_for(lambda: len(api.worker.log("cancel")) > before)
    api.worker.release()
    assert api.chat(grant["api_key"]).status_code == 200


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"temperature": 0}, 400, "temperature"),
        ({"top_p": 0.5}, 400, "top_p"),
        ({"top_k": 5}, 400, "top_k"),
        ({"max_tokens": 100_000}, 400, "max_tokens"),
        ({"messages": [{"role": "user", "content": "x " * 2000}]}, 400, "messages"),
        ({"model": "gpt-4"}, 404, "model"),
        ({"audio": {"voice": "alloy"}}, 400, "audio"),
        ({"max_token": 5}, 400, "max_token"),
        ({"stop": "\ud800"}, 400, None),
        ({"\ud800": 5}, 400, None),
    ],
)
def test_refusals(api: Api, fields: dict[str, Any], status: int, param: str | None) -> None:
    answer = api.http.post(
        "/v1/chat/completions",
        content=json.dumps(HELLO | fields).encode(),
        headers=bearer(api.open()["api_key"]),
    )
    assert answer.status_code == status, answer.text
    assert openais(answer)["param"] == param


def test_evaluations_sample_as_they_like(api: Api) -> None:
    key = api.open(kind="eval")["api_key"]
    assert api.chat(key, temperature=0).status_code == 200
    assert api.chat(key, top_p=0.5, top_k=2**31 - 1, seed=-1).status_code == 200
    assert api.chat(key, top_k=10**30).status_code == 400


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 50_000,
        b'{"a":' * 30_000,
        b'{"model": ' + b"9" * 10_000 + b"}",
        b'{"temperature": NaN, "model": "tiny", "messages": [{"role": "user", "content": "x"}]}',
        b'{"temperature": 1e999, "model": "tiny", "messages": [{"role": "user", "content": "x"}]}',
        b'{"max_tokens": Infinity, "model": "tiny", "messages": [{"role": "user", "content": "x"}]}',
    ],
)
def test_bodies_that_are_wrong(api: Api, content: bytes) -> None:
    answer = api.http.post("/v1/chat/completions", content=content, headers=bearer(api.open()["api_key"]))
    assert answer.status_code == 400
    openais(answer)


def test_a_body_that_is_too_large(api: Api) -> None:
    key = api.open()["api_key"]
    answer = api.chat(key, user="x" * 300_000)
    assert answer.status_code == 413
    assert openais(answer)["code"] == "request_too_large"

    def chunks() -> Any:
        yield from [b" " * 50_000] * 10

    chunked = api.http.post("/v1/chat/completions", content=chunks(), headers=bearer(key))
    assert chunked.status_code == 413


def test_routes_that_are_not_there(api: Api) -> None:
    for answer, status in ((api.http.get("/v1/nothing"), 404), (api.http.get("/v1/chat/completions"), 405)):
        assert answer.status_code == status
        assert openais(answer)["type"] in ("not_found_error", "invalid_request_error")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
messages = st.lists(
    st.dictionaries(st.sampled_from(["role", "content", "name"]), st.sampled_from(["user", "tool"]) | json_values),
    max_size=3,
)
bodies = json_values | st.fixed_dictionaries(
    {},
    optional={
        "model": st.just("tiny") | json_values,
        "messages": st.just(HELLO["messages"]) | messages | json_values,
        **dict.fromkeys(
            [
                "max_tokens",
                "temperature",
                "top_p",
                "top_k",
                "stop",
                "seed",
                "logprobs",
                "top_logprobs",
                "n",
                "stream",
                "metadata",
            ],
            json_values,
        ),
    },
)


@settings(max_examples=150, deadline=None)
@given(body=bodies)
def test_no_body_is_a_mistake_of_ours(api: Api, eval_key: str, body: object) -> None:
    headers = bearer(eval_key)
    answer = api.http.post("/v1/chat/completions", content=json.dumps(body).encode(), headers=headers)
    assert answer.status_code < 500, answer.text
    assert answer.status_code == 200 or openais(answer)["message"]
