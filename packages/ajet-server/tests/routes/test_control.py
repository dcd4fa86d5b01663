"""`/api` on a real socket: episodes, keys, errors, events."""

import json
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest
from api_helpers import Api, bearer, openais, ours, wait_for
from hypothesis import given, settings
from hypothesis import strategies as st
from server_helpers import listening

from ajet_core.ids import new_request_id
from ajet_server.settings import ServerSettings
from ajet_server.wiring import Server


def test_an_episode_from_opening_to_reward(api: Api) -> None:
    body = {"request_id": new_request_id(), "task": {"q": "1+1"}}
    grant = api.http.post("/api/episodes", json=body).json()
    assert api.http.post("/api/episodes", json=body).json() == grant, "a retry is harmless"
    assert grant["base_url"] == f"{api.http.base_url}/v1".replace("//v1", "/v1")
    assert api.control(grant, "heartbeat").json()["lease_s"] == pytest.approx(120, abs=1)
    api.chat(grant["api_key"])
    first = api.finish(grant, reward=0.5, metrics={"steps": 3})
    assert first.status_code == 200
    assert api.finish(grant, reward=0.5, metrics={"steps": 3}).json() == first.json()
    other = api.finish(grant, reward=0.25)
    assert other.status_code == 410
    assert "with reward 0.5 already" in ours(other)["message"]
    assert api.control(grant, "abort", json={}).status_code == 410
    assert api.control(grant, "heartbeat").status_code == 410
    again = api.http.post("/api/episodes", json=body)
    assert (again.status_code, ours(again)["field"]) == (409, "request_id")


def test_whose_key(api: Api) -> None:
    mine, theirs = api.open(), api.open()
    for verb, body in (("finish", {"reward": 1}), ("abort", {}), ("heartbeat", None)):
        for key in (theirs["control_key"], mine["api_key"], "wrong"):
            answer = api.control(mine, verb, key=key, json=body)
            assert (answer.status_code, ours(answer)["code"]) == (401, "invalid_api_key")
        nobody = api.http.post(f"/api/episodes/{mine['episode_id']}/{verb}", json=body)
        assert nobody.status_code == 401
    unknown = api.control({**mine, "episode_id": "ep_none"}, "finish", json={"reward": 1})
    assert (unknown.status_code, ours(unknown)["code"]) == (404, "not_found")
    assert api.control(mine, "abort", key=api.server.admin_token, json={}).status_code == 200


@pytest.mark.parametrize(
    "reward", ["NaN", "Infinity", "-Infinity", "1e999", "1e300", '"1.0"', '""', "null", "[]", "{}", "1000001"]
)
def test_what_is_no_reward(api: Api, reward: str) -> None:
    grant = api.open()
    api.chat(grant["api_key"])
    for body, field in (
        (f'{{"reward": {reward}}}', "reward"),
        (f'{{"reward": 0, "metrics": {{"a": {reward}}}}}', "metrics.a"),
    ):
        answer = api.control(grant, "finish", content=body.encode(), headers={"Content-Type": "application/json"})
        assert answer.status_code == 400, answer.text
        assert ours(answer)["field"] == field
    assert api.finish(grant, reward=1).status_code == 200, "it is still open"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "request_id"),
        ({"request_id": ""}, "request_id"),
        ({"request_id": "x" * 201}, "request_id"),
        ({"request_id": "a", "kind": "test"}, "kind"),
        ({"request_id": "a", "wait_s": 61}, "wait_s"),
        ({"request_id": "a", "wait_s": float("nan")}, "wait_s"),
        ({"request_id": "a", "task_ids": "x"}, "task_ids"),
        ({"request_id": "a", "weights": 0}, "weights"),
        ({"request_id": "a", "kind": "eval", "weights": -1}, "weights"),
        ({"request_id": "a", "\ud800": "x"}, "body"),
        ({"request_id": "\ud800"}, "request_id"),
        ({"request_id": "a", "group_id": "\ud800"}, "group_id"),
        ([], "body"),
    ],
)
def test_bodies_that_are_wrong(api: Api, body: object, field: str) -> None:
    answer = api.http.post(
        "/api/episodes", content=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400, answer.text
    assert ours(answer)["field"] == field


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 50_000, b'{"task":' * 20_000, b"NaN", b"null"])
def test_bodies_that_are_not_json(api: Api, content: bytes) -> None:
    answer = api.http.post("/api/episodes", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert ours(answer)["message"]


def test_a_wrong_content_type(api: Api) -> None:
    content = json.dumps({"request_id": "a"}).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        answer = api.http.post("/api/episodes", content=content, headers={"Content-Type": kind})
        assert answer.status_code == 400
        ours(answer)


def test_a_body_that_is_too_large(api: Api) -> None:
    answer = api.http.post("/api/episodes", json={"request_id": "a", "task": "x" * 300_000})
    assert (answer.status_code, ours(answer)["code"]) == (413, "request_too_large")


def test_routes_that_are_not_there(api: Api) -> None:
    assert ours(api.http.get("/api/nothing"))["code"] == "not_found"
    wrong = api.http.delete("/api/status")
    assert (wrong.status_code, ours(wrong)["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "GET"


@pytest.mark.parametrize("path", ["/api/status", "/api/episodes", "/api/stop", "/v1/chat/completions", "/v1/models"])
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
def test_a_web_page_of_another_origin(api: Api, path: str, origin: str) -> None:
    method = "GET" if path in ("/api/status", "/v1/models") else "POST"
    answer = api.http.request(method, path, headers={"Origin": origin})
    assert answer.status_code == 403
    error = openais(answer) if path.startswith("/v1") else ours(answer)
    assert error["code"] == "forbidden"


def test_our_own_origin(api: Api) -> None:
    origin = f"http://{api.http.base_url.host}:{api.http.base_url.port}"
    assert api.http.get("/api/status", headers={"Origin": origin}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:80", "127.0.0.1.evil.example", "", "["])
def test_a_name_that_was_rebound(api: Api, host: str) -> None:
    refused = api.http.get("/api/status", headers={"Host": host})
    assert (refused.status_code, ours(refused)["code"]) == (403, "forbidden")


@pytest.mark.parametrize("host", ["localhost:80", "127.0.0.1", "[::1]:8000"])
def test_names_of_loopback(api: Api, host: str) -> None:
    assert api.http.get("/api/status", headers={"Host": host}).status_code == 200


def test_the_job(api: Api) -> None:
    job = api.http.get("/api/job").json()
    busy = api.http.put("/api/job", json=job)
    assert (busy.status_code, ours(busy)["code"]) == (409, "conflict")
    wrong = api.http.put("/api/job", json=job | {"batch": {"policy": "groups", "group_size": 1}})
    assert (wrong.status_code, ours(wrong)["code"]) == (400, "invalid_request")
    assert "batch.group_size" in ours(wrong)["message"]
    unknown = api.http.put("/api/job", json=job | {"batches": {}})
    assert (unknown.status_code, ours(unknown)["field"]) == (400, "batches")


def test_status_and_metrics(api: Api) -> None:
    status = api.http.get("/api/status").json()
    assert (status["state"], status["model"], status["step"]) == ("rolling", "tiny", 0)
    assert status["pool"]["waiting_for"].endswith("of 4000 episodes finished")
    text = api.http.get("/metrics").text
    assert 'ajet_engine_state{state="rolling"} 1.0' in text
    assert "ajet_capture_tokens_total" in text
    assert "ajet_sync_weight_version 0.0" in text
    assert api.http.get("/healthz").json() == {"status": "ok"}


def events(api: Api, count: int, **request: Any) -> list[dict[str, Any]]:
    """The first events of a stream, checked for their ids."""
    found: list[dict[str, Any]] = []
    with api.http.stream("GET", "/api/events", **request) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        fields: dict[str, str] = {}
        for line in stream.iter_lines():
            if line:
                name, _, value = line.partition(":")
                fields[name] = value.strip()
                continue
            if "data" in fields and "id" in fields:
                event = json.loads(fields["data"])
                assert event["id"] == int(fields["id"])
                found.append(event)
            fields = {}
            if len(found) >= count:
                break
    return found


def test_events_are_resumed_without_gaps_or_repetitions(api: Api) -> None:
    grants = [api.open() for _ in range(5)]
    total = api.server.ledger.read_now(lambda db: db.execute("SELECT max(id) FROM events").fetchone()[0])
    whole = events(api, total)
    assert [event["id"] for event in whole] == sorted({event["id"] for event in whole})
    assert {grant["episode_id"] for grant in grants} <= {event.get("episode_id") for event in whole}
    middle = whole[len(whole) // 2]["id"]
    rest = [event for event in whole if event["id"] > middle]
    assert events(api, len(rest), headers={"Last-Event-ID": str(middle)}) == rest
    assert events(api, len(rest), params={"after": middle}) == rest


def test_events_as_they_happen(api: Api) -> None:
    newest = api.server.ledger.read_now(lambda db: db.execute("SELECT max(id) FROM events").fetchone()[0])
    seen: list[dict[str, Any]] = []
    watcher = threading.Thread(target=lambda: seen.extend(events(api, 10, params={"after": newest})))
    watcher.start()
    opened = [api.open(kind="eval")["episode_id"] for _ in range(10)]
    watcher.join(20)
    assert [event["episode_id"] for event in seen] == opened


@pytest.mark.parametrize("number", ["-1", "x", str(2**63), "1" * 100])
def test_event_ids_that_are_none(api: Api, number: str) -> None:
    assert api.http.get("/api/events", headers={"Last-Event-ID": number}).status_code == 400
    assert api.http.get("/api/events", params={"after": number}).status_code == 400


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(
    body=json_values
    | st.fixed_dictionaries(
        {"request_id": st.text(st.characters(), max_size=10), "kind": st.just("eval")},
        optional=dict.fromkeys(("task", "task_id", "group_id", "client_id", "wait_s", "reward"), json_values),
    )
)
def test_no_opening_is_a_mistake_of_ours(api: Api, body: object) -> None:
    content = json.dumps(body).encode()
    answer = api.http.post("/api/episodes", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code in (201, 400, 404, 409, 503), answer.text
    if answer.status_code == 201:
        assert api.control(answer.json(), "abort", json={}).status_code == 200


@settings(max_examples=100, deadline=None)
@given(
    body=json_values | st.fixed_dictionaries({}, optional=dict.fromkeys(("reward", "metrics", "reason"), json_values)),
    path=st.sampled_from(["/api/episodes/ep_x/finish", "finish", "abort", "heartbeat", "/api/job", "/api/nothing"]),
)
def test_no_other_body_is_a_mistake_of_ours(api: Api, body: object, path: str) -> None:
    request: dict[str, Any] = {"content": json.dumps(body).encode(), "headers": {"Content-Type": "application/json"}}
    if path.startswith("/"):
        answer = api.http.request("PUT" if path == "/api/job" else "POST", path, **request)
    else:
        grant = api.open(kind="eval")
        answer = api.control(grant, path, **request)
        api.control(grant, "abort", json={})
    assert answer.status_code < 500, answer.text


def test_the_client_token_opens_episodes_and_looks_on_and_no_more(tmp_path: Path) -> None:
    server = Server(ServerSettings("0.0.0.0", 0, tmp_path / "data"))
    with listening(server) as url, httpx2.Client(base_url=url, timeout=20, headers=bearer(server.client_token)) as http:
        assert http.get("/api/status").status_code == 200
        assert http.post("/api/episodes", json={"request_id": "a"}).status_code == 503  # let in; there is no job
        for method, path in (
            ("POST", "/api/start"),
            ("POST", "/api/stop"),
            ("POST", "/api/shutdown"),
            ("PUT", "/api/job"),
        ):
            refused = http.request(method, path, json={"model": {"path": "m"}})
            assert (refused.status_code, ours(refused)["code"]) == (401, "invalid_api_key")
    assert (tmp_path / "data" / "client-token").stat().st_mode & 0o777 == 0o600


def test_other_addresses_of_loopback(tmp_path: Path) -> None:
    server = Server(ServerSettings("127.0.0.2", 0, tmp_path / "data"))
    with listening(server) as url, httpx2.Client(base_url=url, timeout=20) as http:
        assert http.get("/api/status", headers={"Host": "127.0.0.2:8700"}).status_code == 200
        assert http.get("/api/status", headers={"Host": "127.0.0.3:8700"}).status_code == 403


def test_elsewhere_the_admin_token_is_needed(tmp_path: Path) -> None:
    settings = ServerSettings("0.0.0.0", 0, tmp_path / "data")
    server = Server(settings)
    with listening(server) as url, httpx2.Client(base_url=url, timeout=20) as http:
        for method, path in (("GET", "/api/status"), ("POST", "/api/start"), ("POST", "/api/episodes")):
            for headers in ({}, bearer("wrong")):
                refused = http.request(method, path, headers=headers, json={"request_id": "a"})
                assert refused.status_code == 401
                wanted = "admin token" if path == "/api/start" else "client token"
                assert wanted in ours(refused)["message"]
        admin = bearer(server.admin_token)
        assert http.get("/api/status", headers=admin).json()["state"] == "offline"
        no_job = http.post("/api/episodes", headers=admin, json={"request_id": "a"})
        assert (no_job.status_code, ours(no_job)["code"]) == (503, "unavailable")
        assert "PUT /api/job" in ours(no_job)["message"]
        assert http.get("/api/episodes/ep_x").status_code == 401
        assert http.get("/api/episodes/ep_x", headers=bearer("wrong")).status_code in (401, 503)
        assert http.get("/healthz").status_code == 200
        assert http.get("/readyz").status_code == 503
        alone = http.post("/api/shutdown", headers=admin)
        assert alone.status_code == 409


def test_a_wait_for_an_episode_ends_when_there_is_one(api: Api) -> None:
    grants: list[dict[str, Any]] = []
    while (full := api.http.post("/api/episodes", json={"request_id": f"w{len(grants)}", "kind": "eval"})).is_success:
        grants.append(full.json())
    assert (full.status_code, full.headers["retry-after"]) == (503, "1")
    answers: list[httpx2.Response] = []
    body = {"request_id": "waits", "kind": "eval", "wait_s": 20}
    waiter = threading.Thread(target=lambda: answers.append(api.http.post("/api/episodes", json=body)))
    waiter.start()
    wait_for(waiter.is_alive)
    api.control(grants.pop(), "abort", json={})
    waiter.join(20)
    assert answers[0].status_code == 201
    for grant in [*grants, answers[0].json()]:
        api.control(grant, "abort", json={})
