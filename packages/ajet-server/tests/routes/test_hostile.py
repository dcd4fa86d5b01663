"""Requests made to hurt, by web pages, agents, whoever reaches the port. Each is refused, and the server goes on."""

import gzip
import hmac
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from api_helpers import HELLO, Api, bearer
from server_helpers import make_job

from ajet_core.ids import new_request_id
from ajet_server.app import build_app
from ajet_server.routes import access
from ajet_server.settings import ServerSettings
from ajet_server.wiring import Server

POSTS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/api/episodes", "/api/ready"]
_JSON = {"Content-Type": "application/json"}


@pytest.fixture
def post(api: Api) -> Iterator[Callable[..., Any]]:
    """Posts bytes with a key that is let in, and looks afterwards that the server answers as before."""
    grant = api.open(kind="eval")
    key = grant["api_key"]

    def send(path: str, content: bytes, **headers: str) -> Any:
        answer = api.http.post(path, content=content, headers=_JSON | bearer(key) | headers)
        assert api.chat(key).status_code == 200, "the next call is served"
        return answer

    yield send
    assert api.control(grant, "abort", json={}).status_code == 200


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"a":' * 30_000, b"[" * 900 + b"]" * 900])
def test_deep_nesting_is_refused(post: Callable[..., Any], path: str, content: bytes) -> None:
    assert post(path, content).status_code == 400


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("number", ["9" * 5_000, "1e999999", "-" + "9" * 100_000, "0." + "1" * 100_000])
def test_numbers_that_are_too_large_are_refused_or_ignored(post: Callable[..., Any], path: str, number: str) -> None:
    names = ("max_tokens", "max_output_tokens", "seed", "temperature", "n", "wait_s", "task")
    for name in names:
        body = json.dumps(HELLO | {"request_id": new_request_id(), name: 0}).replace(
            f'"{name}": 0', f'"{name}": {number}'
        )
        assert post(path, body.encode()).status_code < 500


@pytest.mark.parametrize("path", POSTS)
def test_compressed_bodies_are_not_unpacked(post: Callable[..., Any], path: str) -> None:
    """A few kilobytes can be gigabytes."""
    bomb = gzip.compress(b" " * 10_000_000)
    for encoding in ("gzip", "deflate", "br", "zstd"):
        assert post(path, bomb, **{"Content-Encoding": encoding}).status_code == 400


@pytest.mark.parametrize("path", POSTS)
def test_large_bodies_are_refused(post: Callable[..., Any], path: str) -> None:
    assert post(path, json.dumps({"a": "x" * 300_000}).encode()).status_code == 413


@pytest.mark.parametrize("path", [*POSTS, "/api/status"])
def test_long_heads_are_refused(api: Api, path: str) -> None:
    many = {f"x-{number}": "y" * 1000 for number in range(80)}
    for headers in ({"x": "y" * 80_000}, many):
        answer = api.http.request("GET" if path == "/api/status" else "POST", path, headers=headers)
        assert answer.status_code == 431
        assert "65536" in answer.json()["error"]["message"]
    assert api.http.get(f"/api/{'x' * 60_000}", headers={"x": "y" * 10_000}).status_code == 431
    assert api.http.get("/api/status").status_code == 200


@pytest.mark.parametrize("path", [*POSTS, "/api/status", "/api/events", "/v1/models"])
def test_no_page_of_another_origin_is_let_in(api: Api, path: str) -> None:
    """There are no CORS headers, not even for a browser that asks first."""
    asked = {
        "Origin": "https://evil.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
        "Access-Control-Request-Private-Network": "true",
    }
    answer = api.http.options(path, headers=asked)
    assert answer.status_code >= 400
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_the_documentation_is_a_sandbox(api: Api) -> None:
    """Its script is from elsewhere; it has an origin of its own, and what it shows is inside of the page."""
    page = api.http.get("/api/docs")
    assert page.headers["content-security-policy"].startswith("sandbox allow-scripts;")
    assert "/v1/chat/completions" in page.text
    assert "url: ''" in page.text
    assert api.http.get("/api/status", headers={"Origin": "null"}).status_code == 403


def test_addresses_in_requests_are_not_fetched(api: Api) -> None:
    key = api.open(kind="eval")["api_key"]
    for url in ("http://127.0.0.1:9/x.png", "file:///etc/passwd", "data:image/png;base64,AAAA"):
        content = [{"type": "image_url", "image_url": {"url": url}}]
        answer = api.chat(key, messages=[{"role": "user", "content": content}])
        assert answer.status_code == 400
        assert "messages" in answer.json()["error"]["message"]


def test_names_are_no_paths(api: Api, tmp_path: Path) -> None:
    before = sorted(file.name for file in api.server.data_dir.path.iterdir())
    for name in ("../../evil", "/etc/evil", "a\x00b", "..", "evil\nname", "\x1b[2J"):
        grant = api.open(kind="eval", task_id=name, group_id=name, client_id=name)
        view = api.control(grant, "abort", json={"reason": name}).json()
        assert (view["task_id"], view["client_id"], view["reason"]) == (name, name, name), "a name is a name"
    assert sorted(file.name for file in api.server.data_dir.path.iterdir()) == before


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "..%2F..%2Fadmin-token", "%2e%2e/secret", "ep_%00", "'; DROP TABLE episodes; --"]
)
def test_ids_are_no_paths_and_no_sql(api: Api, name: str) -> None:
    answer = api.http.get(f"/api/episodes/{name}")
    assert answer.status_code in (400, 404)
    assert "admin-ajet" not in answer.text
    assert api.http.get("/api/status").status_code == 200


def test_a_mistake_of_ours_tells_nothing(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback, no path, no text of the error."""

    def stumble(_: Server) -> None:
        raise ValueError(f"secret {__file__}")

    monkeypatch.setattr(Server, "status", stumble)
    text = api.http.get("/api/status").text
    assert "ValueError" in text
    assert all(word not in text for word in ("secret", "Traceback", ".py", "/tests/"))


def test_refusals_quote_no_key(api: Api) -> None:
    grant = api.open(kind="eval")
    for key in (grant["api_key"], grant["control_key"], api.server.admin_token):
        wrong = f"{key[:-2]}!!"
        for method, path in (("POST", "/v1/chat/completions"), ("POST", f"/api/episodes/{grant['episode_id']}/abort")):
            answer = api.http.request(method, path, headers=bearer(wrong), json={})
            assert answer.status_code == 401
            assert key[-20:-2] not in answer.text


def test_tokens_are_compared_in_constant_time(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that stops at the first difference tells by its time how much was right."""
    compared: list[bytes] = []

    def compare(mine: bytes, theirs: bytes) -> bool:
        compared.append(mine)
        return hmac.compare_digest(mine, theirs)

    monkeypatch.setattr(access, "hmac", type("Watched", (), {"compare_digest": staticmethod(compare)}))
    grant = api.open(kind="eval")
    assert api.control(grant, "abort", key="wrong", json={}).status_code == 401
    assert b"wrong" in compared


def test_whether_loopback_is_open_is_the_operators_choice(tmp_path: Path) -> None:
    told = ServerSettings("127.0.0.1", 0, tmp_path)
    assert not told.asks_for_token
    assert ServerSettings("127.0.0.1", 0, tmp_path, require_token=True).asks_for_token
    assert ServerSettings("0.0.0.0", 0, tmp_path).asks_for_token


def test_readiness_names_no_path(tmp_path: Path, model: Path) -> None:
    """It is open to everybody who can connect; the cause, which may name the model's folder, is for `/api/status`."""
    from starlette.testclient import TestClient

    server = Server(ServerSettings("0.0.0.0", 0, tmp_path / "data", make_job(model)))
    server.runtime.conductor.cause = f"loading {model}"
    with_app = TestClient(build_app(server))
    answer = with_app.get("/readyz")
    server.ledger.close()
    server.data_dir.close()
    assert answer.status_code == 503
    assert str(model) not in answer.text
