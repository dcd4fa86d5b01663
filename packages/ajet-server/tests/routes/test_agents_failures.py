"""`/v1` when something goes wrong: callers that leave, limits, weights that move, errors in the middle of a stream."""

import json
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from api_helpers import Api, bearer, serving, wait_for
from dialect_helpers import FINISHED, PATHS, body_of

from ajet_server.capture.calls import whole_calls
from ajet_server.episodes.book import OpenState

Create = Callable[..., Any]


@pytest.fixture(scope="module")
def api(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("failing")
    (folder / "worker").mkdir()
    (folder / "worker" / "max_model_len").write_text("4096")
    limits = {"max_episode_calls": 3, "max_episode_tokens": 7, "max_open_episodes": 500}
    with serving(folder, model, limits=limits) as made:
        yield made


@pytest.fixture(scope="module")
def hasty(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Calls wait for two seconds only."""
    with serving(tmp_path_factory.mktemp("hasty"), model, limits={"request_timeout_s": 2.0}) as made:
        yield made


def _state(api: Api, grant: dict[str, Any]) -> OpenState:
    return api.server.runtime.episodes.agent(grant["api_key"])


def _recorded(api: Api, grant: dict[str, Any]) -> int:
    return len(api.server.ledger.read_now(lambda db: whole_calls(db, grant["episode_id"])))


@contextmanager
def _stream(api: Api, grant: dict[str, Any], path: str, **fields: Any) -> Iterator[Iterator[str]]:
    """The events of a stream, as they come."""
    body, headers = body_of(path, stream=True, **fields), bearer(grant["api_key"])
    with api.http.stream("POST", path, json=body, headers=headers) as answer:
        assert answer.status_code == 200
        yield (line for line in answer.iter_lines() if line.startswith("data:"))


@contextmanager
def _blocked(api: Api) -> Iterator[threading.Event]:
    """The disk takes its time, until the event is set or the block ends."""
    disk, reached = threading.Event(), threading.Event()

    def wait(_: sqlite3.Connection) -> None:
        reached.set()
        disk.wait(20)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(api.server.ledger.write_now, wait)
        assert reached.wait(20)
        try:
            yield disk
        finally:
            disk.set()


@pytest.mark.parametrize("path", PATHS)
def test_who_leaves_a_stream_ends_the_call(api: Api, path: str) -> None:
    grant = api.open()
    cancelled = len(api.worker.log("cancel"))
    api.worker.hold(after=1)
    with _stream(api, grant, path) as events:
        next(events)
    wait_for(lambda: len(api.worker.log("cancel")) > cancelled)
    api.worker.release()
    wait_for(lambda: _state(api, grant).in_flight == 0)
    assert (_recorded(api, grant), _state(api, grant).reserved) == (0, 0)


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_says_that_it_is_done_only_when_that_is_durable(api: Api, path: str) -> None:
    grant = api.open()
    with _blocked(api) as disk, _stream(api, grant, path) as events:
        seen: queue.SimpleQueue[str] = queue.SimpleQueue()
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(lambda: [seen.put(event) for event in events])
            wait_for(lambda: api.server.runtime.conductor.supervisor.in_worker == 0)
            early = [seen.get(timeout=20) for _ in range(1 + seen.qsize() // 2)]
            assert not any(word in event for event in early for word in FINISHED)
            assert not reading.done()
            assert _recorded(api, grant) == 0
            disk.set()
            reading.result(20)
        late = [seen.get() for _ in range(seen.qsize())]
    assert any(word in event for event in late for word in FINISHED)
    assert _recorded(api, grant) == 1


@pytest.mark.parametrize("path", PATHS)
def test_an_error_in_the_middle_of_a_stream_is_told_in_it(api: Api, path: str) -> None:
    grant = api.open()
    api.worker.hold(after=2)
    with _stream(api, grant, path) as events:
        first = next(events)
        api.control(grant, "abort", json={"reason": "the test"})
        told = [first, *events]
    api.worker.release()
    assert not any(word in event for event in told for word in FINISHED)
    assert "was closed while the call ran" in told[-1]
    assert _recorded(api, grant) == 0


def _openai(api: Api, grant: dict[str, Any], **fields: Any) -> tuple[Any, Create]:
    client = openai.OpenAI(base_url=f"{api.url}/v1", api_key=grant["api_key"], **fields)
    return client, lambda **more: client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "x"}], **more
    )


def _responses(api: Api, grant: dict[str, Any], **fields: Any) -> tuple[Any, Create]:
    client = openai.OpenAI(base_url=f"{api.url}/v1", api_key=grant["api_key"], **fields)
    return client, lambda **more: client.responses.create(model="tiny", input="x", **more)


def _anthropic(api: Api, grant: dict[str, Any], **fields: Any) -> tuple[Any, Create]:
    client = anthropic.Anthropic(base_url=api.url, api_key=grant["api_key"], **fields)
    return client, lambda **more: client.messages.create(
        model="tiny", max_tokens=9, messages=[{"role": "user", "content": "x"}], **more
    )


@pytest.mark.parametrize(
    ("sdk", "error"),
    [(_openai, openai.APIError), (_responses, openai.APIError), (_anthropic, anthropic.APIStatusError)],
)
def test_sdks_raise_an_error_in_the_middle_of_a_stream(api: Api, sdk: Any, error: type[Exception]) -> None:
    grant = api.open()
    client, create = sdk(api, grant, max_retries=0)
    api.worker.hold(after=2)
    with client:
        events = create(stream=True)
        next(events)
        api.control(grant, "abort", json={"reason": "the test"})
        with pytest.raises(error, match="was closed while the call ran"):
            list(events)
    api.worker.release()


class _Waits:
    """What an SDK waits before it tries again, from the header; it does not wait that long here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, before_retry: Callable[[], None]) -> None:
        self.headers: list[str] = []
        for module in (openai, anthropic):
            base = module._base_client.BaseClient
            monkeypatch.setattr(base, "_calculate_retry_timeout", self._wait)
        self._before_retry = before_retry

    def _wait(self, _remaining: int, _options: object, headers: Any) -> float:
        self.headers.append(headers["retry-after"])
        self._before_retry()
        return 0.0


@pytest.mark.parametrize(
    ("sdk", "stream"), [(_openai, False), (_openai, True), (_responses, True), (_anthropic, False), (_anthropic, True)]
)
def test_sdks_come_again_when_weights_have_moved(
    hasty: Api, monkeypatch: pytest.MonkeyPatch, sdk: Any, stream: bool
) -> None:
    grant = hasty.open()
    waits = _Waits(monkeypatch, hasty.worker.release)
    client, create = sdk(hasty, grant)
    hasty.worker.hold()  # nothing is answered until the SDK has seen its 503
    with client:
        answer = create(stream=stream)
        assert not stream or list(answer)
    assert waits.headers == ["5"]
    assert _recorded(hasty, grant) == 1


@pytest.mark.parametrize(
    ("sdk", "error"),
    [
        (_openai, openai.PermissionDeniedError),
        (_responses, openai.PermissionDeniedError),
        (_anthropic, anthropic.PermissionDeniedError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_used_up_episode_is_told_once(api: Api, sdk: Any, error: type[Exception], stream: bool) -> None:
    grant, tries = api.open(), list[httpx2.Request]()
    http = httpx2.Client(event_hooks={"request": [tries.append]})
    client, create = sdk(api, grant, http_client=http)
    with client:
        for _ in range(3):  # of 3 tokens each; 7 are allowed
            create()
        assert _state(api, grant).sampled == 7
        with pytest.raises(error, match="max_episode_") as refused:
            create(stream=stream)
    assert len(tries) == 4, "no SDK tries again"
    body: Any = refused.value
    assert body.status_code == 403
    assert "episode_budget_exceeded" in json.dumps(body.response.json())


@pytest.mark.parametrize("path", PATHS)
def test_the_shape_of_a_used_up_episode(api: Api, path: str) -> None:
    grant = api.open()
    body = body_of(path, stream=False)
    answers = [api.http.post(path, json=body, headers=bearer(grant["api_key"])) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 403]
    error = answers[-1].json()["error"]
    if path == "/v1/messages":
        assert (error["type"], error["details"]) == ("permission_error", {"error_code": "episode_budget_exceeded"})
    else:
        assert (error["type"], error["code"]) == ("permission_error", "episode_budget_exceeded")
    assert "max_episode_calls=3" in error["message"]


def test_a_caller_that_left_while_it_was_recorded_gets_the_call_when_it_comes_again(api: Api) -> None:
    grant = api.open()
    path, headers = "/v1/chat/completions", bearer(grant["api_key"])
    body = body_of(path, stream=False)
    with _blocked(api), pytest.raises(httpx2.ReadTimeout):
        api.http.post(path, json=body, headers=headers, timeout=0.5)
    wait_for(lambda: _state(api, grant).in_flight == 0)
    generated = len(api.worker.log("generate"))
    again = api.http.post(path, json=body, headers=headers | {"x-stainless-retry-count": "1"})
    assert again.status_code == 200
    assert len(api.worker.log("generate")) == generated
    assert _recorded(api, grant) == 1


def test_a_thousand_calls_of_five_hundred_episodes_at_once(model: Path, tmp_path: Path) -> None:
    """One writer and a bounded queue: nobody is refused, and the sizes of what waits are bounded."""
    limits = {"max_open_episodes": 1024, "request_timeout_s": 60}
    with serving(tmp_path, model, limits=limits) as api:
        grants = [api.open(kind="eval") for _ in range(512)]

        def talk(grant: dict[str, Any]) -> list[int]:
            return [api.chat(grant["api_key"]).status_code for _ in range(2)]

        with ThreadPoolExecutor(128) as pool:
            statuses = [status for both in pool.map(talk, grants) for status in both]
        assert set(statuses) == {200}
        count = api.server.ledger.read_now(lambda db: db.execute("SELECT count(*) FROM calls").fetchone()[0])
        assert count == 1024


def test_calls_belong_to_the_episode_of_their_key(api: Api) -> None:
    grants = [api.open(kind="eval") for _ in range(40)]

    def ask(number: int) -> int:
        messages = [{"role": "user", "content": f"episode {number}"}]
        return api.chat(grants[number]["api_key"], messages=messages, max_tokens=3).status_code

    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(ask, [*range(40), *range(40)])) == {200}
    for number, grant in enumerate(grants):
        calls = api.server.ledger.read_now(lambda db: whole_calls(db, grant["episode_id"]))  # noqa: B023 - read here
        assert [call.messages[0]["content"] for call in calls] == [f"episode {number}"] * 2
