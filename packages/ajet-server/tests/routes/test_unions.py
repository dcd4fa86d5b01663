"""Unions over HTTP: prepare, look, decide; who may, and what is refused."""

from pathlib import Path
from typing import Any

import httpx2
import pytest
from api_helpers import Api, bearer, ours
from server_helpers import listening

from ajet_core.ids import digest_secret, new_secret, new_union_id
from ajet_server.settings import ServerSettings
from ajet_server.wiring import Server

COMMIT, ABORT = new_secret(), new_secret()
DECIDES = {"commit_secret": COMMIT, "abort_secret": ABORT}
FOLLOWS = {
    "decider": "http://a",
    "commit_digest": digest_secret(COMMIT),
    "abort_digest": digest_secret(ABORT),
}


def prepared(api: Api, part: dict[str, str], union_id: str) -> dict[str, Any]:
    grant = api.open()
    assert api.chat(grant["api_key"]).status_code == 200
    body = {"reward": 0.5, "metrics": {"m": 1}, "union_id": union_id, "part": part}
    first = api.control(grant, "prepare", json=body)
    assert first.status_code == 200, first.text
    assert api.control(grant, "prepare", json=body).json() == first.json(), "a retry is harmless"
    assert (first.json()["status"], first.json()["union_id"]) == ("open", union_id)
    return grant


def test_a_follower_over_http(api: Api) -> None:
    union_id = new_union_id()
    grant = prepared(api, FOLLOWS, union_id)
    assert api.chat(grant["api_key"]).status_code == 410
    assert api.control(grant, "heartbeat").status_code == 200
    for verb, body in (("finish", {"reward": 0.5, "metrics": {"m": 1}}), ("abort", {})):
        answer = api.control(grant, verb, json=body)
        assert (answer.status_code, ours(answer)["code"]) == (409, "conflict")
    unions = {union["union_id"]: union for union in api.http.get("/api/unions").json()["unions"]}
    assert unions[union_id]["episode_ids"] == [grant["episode_id"]]
    assert unions[union_id]["decider"] == "http://a"
    assert api.http.get(f"/api/unions/{union_id}").status_code == 404
    decision = f"/api/unions/{union_id}/decision"
    assert api.http.post(decision, json={"secret": new_secret()}).status_code == 403
    (view,) = api.http.post(decision, json={"secret": COMMIT}).json()
    assert (view["status"], view["reward"], view["metrics"]) == ("finished", 0.5, {"m": 1})
    assert union_id not in api.http.get("/api/unions").text


def test_a_decider_over_http(api: Api) -> None:
    union_id = new_union_id()
    grant = prepared(api, DECIDES, union_id)
    assert api.http.get(f"/api/unions/{union_id}").json() == {
        "union_id": union_id, "state": "undecided", "secret": None,
    }  # fmt: skip
    assert api.finish(grant, reward=0.5, metrics={"m": 1}).status_code == 200
    assert api.http.get(f"/api/unions/{union_id}").json()["secret"] == COMMIT
    assert api.http.post(f"/api/unions/{union_id}/decision", json={"secret": COMMIT}).status_code == 404


def test_the_admin_may_give_a_follower_up(api: Api) -> None:
    grant = prepared(api, FOLLOWS, new_union_id())
    answer = api.control(grant, "abort", key=api.server.admin_token, json={"reason": "its decider is lost"})
    assert (answer.status_code, answer.json()["status"]) == (200, "aborted")


@pytest.mark.parametrize(
    "wrong",
    [
        {"part": DECIDES | {"abort_secret": COMMIT}},
        {"part": FOLLOWS | {"abort_digest": FOLLOWS["commit_digest"]}},
        {"part": FOLLOWS | {"commit_digest": "x" * 64}},
        {"part": DECIDES | {"commit_secret": "short"}},
        {"part": DECIDES | FOLLOWS},
        {"part": {}},
        {"union_id": ""},
        {"reward": "NaN"},
    ],
)
def test_what_is_no_promise(api: Api, wrong: dict[str, Any]) -> None:
    grant = api.open()
    api.chat(grant["api_key"])
    body = {"reward": 0.5, "union_id": "un_1", "part": FOLLOWS} | wrong
    answer = api.control(grant, "prepare", json=body)
    assert answer.status_code == 400
    assert ours(answer)["field"].startswith(next(iter(wrong)))
    assert api.control(grant, "abort", json={}).status_code == 200


def test_whose_key_prepares(api: Api) -> None:
    mine, theirs = api.open(), api.open()
    body = {"reward": 0.5, "union_id": "un_1", "part": FOLLOWS}
    for key in (theirs["control_key"], mine["api_key"], "wrong"):
        assert api.control(mine, "prepare", key=key, json=body).status_code == 401


def test_elsewhere_than_on_loopback_a_token_is_needed(tmp_path: Path) -> None:
    server = Server(ServerSettings("0.0.0.0", 0, tmp_path / "data"))
    with listening(server) as url, httpx2.Client(base_url=url, timeout=20) as http:
        for method, path in (("GET", ""), ("GET", "/un_1"), ("POST", "/un_1/decision")):
            json = {"secret": COMMIT} if method == "POST" else None
            assert http.request(method, f"/api/unions{path}", json=json).status_code == 401
            allowed = http.request(method, f"/api/unions{path}", json=json, headers=bearer(server.client_token))
            assert allowed.status_code == 503, "there is no job yet"
    server.data_dir.close()
