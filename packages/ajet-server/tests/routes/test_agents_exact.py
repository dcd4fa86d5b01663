"""`/v1` in every dialect: what is sampled is what is recorded, told, given again and gone on from."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from api_helpers import Api, bearer, serving
from dialect_helpers import FINISHED, PATHS, body_of, tokens_of
from gateway_helpers import CALL, END, ids_of

from ajet_server.capture.calls import WholeCall, whole_calls
from ajet_server.gateway.service import Gateway


@pytest.fixture(scope="module")
def api(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """The model says "hi", in two tokens that no tokenizer gives for it, and calls a tool."""
    folder = tmp_path_factory.mktemp("exact")
    (folder / "worker").mkdir()
    (folder / "worker" / "max_model_len").write_text("4096")
    with serving(folder, model) as made:
        made.worker.say({"tokens": _sampled(model), "cached_tokens": 2})
        yield made


def _sampled(model: Path) -> list[int]:
    return [*ids_of(model, "h"), *ids_of(model, "i"), *ids_of(model, CALL), END]


def _calls(api: Api, grant: dict[str, Any]) -> list[WholeCall]:
    return api.server.ledger.read_now(lambda db: whole_calls(db, grant["episode_id"]))


def _ids(data: bytes) -> list[int]:
    return memoryview(data).cast("i").tolist()


def _ask(api: Api, grant: dict[str, Any], path: str, body: dict[str, Any], tries: int = 0) -> httpx2.Response:
    headers = bearer(grant["api_key"]) | {"x-stainless-retry-count": str(tries)}
    answer = api.http.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_captured_ids_are_the_sampled_ones_and_usage_counts_them(
    api: Api, model: Path, path: str, stream: bool
) -> None:
    grant = api.open()
    answer = _ask(api, grant, path, body_of(path, stream=stream))
    (call,) = _calls(api, grant)
    sampled = _sampled(model)
    told, usage = tokens_of(path, answer, stream=stream)
    assert told == sampled == _ids(call.record.completion_ids)
    assert usage == len(sampled) == len(call.record.logprobs) // 4
    assert _ids(call.prompt_ids) == api.worker.log("generate")[-1]["prompt"]
    view = api.finish(grant).json()
    assert (view["calls"], view["completion_tokens"], view["prompt_tokens"]) == (
        1,
        len(sampled),
        call.record.prompt_tokens,
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_a_retry_gets_the_same_bytes(api: Api, monkeypatch: pytest.MonkeyPatch, path: str, stream: bool) -> None:
    monkeypatch.setattr(Gateway, "delivered", lambda *_: None)  # as if the connection broke before the end
    grant, body = api.open(), body_of(path, stream=stream)
    first = _ask(api, grant, path, body)
    generated = len(api.worker.log("generate"))
    again = _ask(api, grant, path, body, tries=1)
    if stream:  # told at once and not token by token; the events that end it are the same
        assert tokens_of(path, again, stream=True) == tokens_of(path, first, stream=True)
        assert _endings(again.text) == _endings(first.text)
    else:
        assert again.content == first.content
    assert len(api.worker.log("generate")) == generated
    assert len(_calls(api, grant)) == 1


def _endings(text: str) -> list[str]:
    """The events that end a stream, without their numbers."""
    events = text.strip().split("\n\n")
    return [event.split('"sequence_number"')[0] for event in events if any(word in event for word in FINISHED)]


@pytest.mark.parametrize("path", PATHS)
def test_what_differs_is_another_call(api: Api, path: str) -> None:
    grant = api.open()
    whole = body_of(path, stream=False)
    _ask(api, grant, path, whole)
    _ask(api, grant, path, body_of(path, stream=True), tries=1)
    _ask(api, grant, path, whole | {"temperature": 0.5}, tries=1)
    assert len(_calls(api, grant)) == 3


def test_an_answer_that_the_sdk_lost_is_recorded_once(api: Api) -> None:
    """The whole answer was sent, and lost on its way: no server can see that, but the SDK's retry says so."""
    grant = api.open()
    with _losing(api, grant, openai.OpenAI) as client:
        answer = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hello"}])
        other = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hello"}])
    (first, second) = _calls(api, grant)
    assert (answer.id, other.id) == (first.record.id, second.record.id)


class _Losing(httpx2.HTTPTransport):
    """Loses the first answer, after it was read."""

    lost = False

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = super().handle_request(request)
        if not self.lost:
            self.lost = True
            answer.read()
            raise httpx2.ReadError("the connection broke")
        return answer


def _losing(api: Api, grant: dict[str, Any], sdk: Any) -> Any:
    return sdk(base_url=f"{api.url}/v1", api_key=grant["api_key"], http_client=httpx2.Client(transport=_Losing()))


def test_a_call_in_one_dialect_goes_on_in_another(api: Api, model: Path) -> None:
    grant = api.open()
    url, key = api.url, grant["api_key"]
    tool = {"type": "object"}
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key) as client:
        first = client.responses.create(
            model="tiny",
            input="add",
            tools=[{"type": "function", "name": "add", "parameters": tool, "strict": None}],  # type: ignore[list-item]
        )
    (call,) = [item for item in first.output if item.type == "function_call"]
    with anthropic.Anthropic(base_url=url, api_key=key) as client:
        client.messages.create(
            model="tiny",
            max_tokens=100,
            tools=[{"name": "add", "input_schema": tool}],  # type: ignore[list-item]
            messages=[
                {"role": "user", "content": "add"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "hi"},
                        {"type": "tool_use", "id": call.call_id, "name": "add", "input": {"x": 1}},
                    ],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.call_id, "content": "2"}]},
            ],
        )
    one, two = _calls(api, grant)
    assert two.record.parent_id == one.record.id
    before = _ids(one.prompt_ids) + _sampled(model)
    assert _ids(two.prompt_ids)[: len(before)] == before


def test_a_response_is_gone_on_from_by_its_id(tmp_path: Path, model: Path) -> None:
    """Also after a restart; the instructions of the first do not carry over."""
    (tmp_path / "worker").mkdir()
    (tmp_path / "worker" / "max_model_len").write_text("4096")
    grant: dict[str, Any] = {}
    answers: list[Any] = []
    for turn in range(3):
        with serving(tmp_path, model) as api:
            grant = grant or api.open()
            with openai.OpenAI(base_url=f"{api.url}/v1", api_key=grant["api_key"]) as client:
                answers.append(
                    client.responses.create(
                        model="tiny",
                        input=f"turn {turn}",
                        previous_response_id=answers[-1].id if answers else openai.omit,
                    )
                )
            calls = _calls(api, grant)
    assert [call.record.parent_id for call in calls] == [None, calls[0].record.id, calls[1].record.id]
    for before, after in pairwise(calls):
        start = _ids(before.prompt_ids) + _ids(before.record.completion_ids)
        assert _ids(after.prompt_ids)[: len(start)] == start
