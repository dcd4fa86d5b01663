"""Who may call what, for every route that there is: a new one without a decision here fails."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from api_helpers import Api, bearer, serving
from fastapi import FastAPI
from server_helpers import make_job
from starlette.routing import BaseRoute, Route

from ajet_server.app import build_app
from ajet_server.settings import ServerSettings
from ajet_server.wiring import Server

EVERYBODY = frozenset({"nobody", "wrong", "agent", "control", "client", "admin"})
AGENT, CLIENT, ADMIN = frozenset({"agent"}), frozenset({"client", "admin"}), frozenset({"admin"})
CONTROL = frozenset({"control", "admin"})

SCOPES = {
    "GET /healthz": EVERYBODY,
    "GET /readyz": EVERYBODY,
    "GET /metrics": EVERYBODY,
    "GET /api/docs": EVERYBODY,
    "GET /api/openapi.json": EVERYBODY,
    "POST /v1/chat/completions": AGENT,
    "POST /v1/completions": AGENT,
    "POST /v1/responses": AGENT,
    "POST /v1/messages": AGENT,
    "POST /v1/messages/count_tokens": AGENT,
    "GET /v1/models": AGENT,
    "GET /v1/models/{name:path}": AGENT,
    "GET /api/status": CLIENT,
    "GET /api/janitor": CLIENT,
    "GET /api/job": CLIENT,
    "GET /api/events": CLIENT,
    "POST /api/ready": CLIENT,
    "POST /api/episodes": CLIENT,
    "GET /api/episodes/{episode_id}": CLIENT | CONTROL,
    "POST /api/episodes/{episode_id}/heartbeat": CONTROL,
    "POST /api/episodes/{episode_id}/prepare": CONTROL,
    "POST /api/episodes/{episode_id}/finish": CONTROL,
    "POST /api/episodes/{episode_id}/abort": CONTROL,
    "GET /api/unions": CLIENT,
    "GET /api/unions/{union_id}": CLIENT,
    "POST /api/unions/{union_id}/decision": CLIENT,
    "PUT /api/job": ADMIN,
    "POST /api/start": ADMIN,
    "POST /api/stop": ADMIN,
    "POST /api/shutdown": ADMIN,
}


@pytest.fixture(scope="module")
def guarded(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Api, dict[str, str]]]:
    """A server that asks for tokens, with one open episode; and keys by who holds them."""
    with serving(tmp_path_factory.mktemp("server"), model, require_token=True) as api:
        api.http.headers["Authorization"] = f"Bearer {api.server.client_token}"
        grant = api.open()
        del api.http.headers["Authorization"]
        yield (
            api,
            {
                "wrong": "sk-ajet-wrong",
                "agent": grant["api_key"],
                "control": grant["control_key"],
                "client": api.server.client_token,
                "admin": api.server.admin_token,
                "episode": grant["episode_id"],
            },
        )


def _routes_of(app: FastAPI) -> set[str]:
    return {
        f"{method} {route.path}" for route in _flat(app.routes) for method in route.methods or () if method != "HEAD"
    }


def _flat(routes: Sequence[BaseRoute]) -> Iterator[Route]:
    for route in routes:
        included = getattr(route, "original_router", None)  # FastAPI includes routers late
        if included is not None:
            yield from _flat(included.routes)
        else:
            assert isinstance(route, Route), f"{route}: nothing is mounted"
            yield route


def test_every_route_has_a_decision(model: Path, tmp_path: Path) -> None:
    server = Server(ServerSettings("127.0.0.1", 0, tmp_path / "data", make_job(model)))
    found = _routes_of(build_app(server))
    server.ledger.close()
    server.data_dir.close()
    assert found == SCOPES.keys()


@pytest.mark.parametrize("who", sorted(EVERYBODY))
@pytest.mark.parametrize("route", SCOPES)
def test_who_may(guarded: tuple[Api, dict[str, str]], route: str, who: str) -> None:
    api, keys = guarded
    method, path = route.split()
    path = path.replace("{episode_id}", keys["episode"]).replace("{name:path}", "tiny")
    headers = {} if who == "nobody" else bearer(keys[who])
    body: dict[str, Any] = {} if method == "GET" else {"json": {}}
    with api.http.stream(method, path, headers=headers, **body) as answer:
        let_in = answer.status_code not in (401, 403)
    assert let_in == (who in SCOPES[route]), answer.status_code
