"""The shape of an error is that of the API that was called."""

import logging
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.testclient import TestClient

from ajet_core.errors import AjetError, EpisodeClosedError, RequestError, UnavailableError
from ajet_server.routes.errors import install_error_handlers
from ajet_server.routes.limits import AnnouncedLengthMiddleware

PATHS = ["/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions", "/api/status"]
SHAPES = [{"type", "error", "request_id"}] * 2 + [{"error"}] * 2


class _Body(BaseModel):
    size: int


def client_of(error: Exception | None = None) -> TestClient:
    """An app whose every route raises `error`, or wants a body."""
    app = FastAPI()
    install_error_handlers(app)
    app.add_middleware(AnnouncedLengthMiddleware, max_bytes=50)

    async def fail(body: _Body) -> None:
        if error is not None:
            raise error

    for path in PATHS:
        app.post(path)(fail)
    return TestClient(app, raise_server_exceptions=False)


def post(path: str, error: Exception | None = None, body: object = None) -> httpx2.Response:
    return client_of(error).post(path, json={"size": 1} if body is None else body)


@pytest.mark.parametrize(("path", "keys"), list(zip(PATHS, SHAPES, strict=True)))
def test_shapes(path: str, keys: set[str]) -> None:
    refused = post(path, RequestError("size: 1 is wrong", field="size"))
    assert refused.status_code == 400
    assert refused.json().keys() == keys
    for answer in (
        post(path, ValueError("a bug")),
        post(path, body={"size": "x"}),
        post(path, body={"size": 1, "more": "x" * 60}),
        client_of().get(path),
    ):
        assert answer.status_code >= 400
        assert answer.json().keys() == keys


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (RequestError("what"), 400, "invalid_request_error"),
        (EpisodeClosedError("what"), 410, "permission_error"),
        (UnavailableError("what", retry_after_s=1.5), 503, "overloaded_error"),
    ],
)
def test_anthropics_shape(error: AjetError, status: int, kind: str) -> None:
    answer = post("/v1/messages", error)
    body: dict[str, Any] = answer.json()
    assert answer.status_code == status
    assert body.pop("request_id") == answer.headers["request-id"]
    assert body == {"type": "error", "error": {"type": kind, "message": "what", "details": {"error_code": error.code}}}
    assert answer.headers.get("retry-after") == ("2" if status == 503 else None)


def test_a_body_that_is_too_large() -> None:
    answer = post("/v1/messages", body={"size": 1, "more": "x" * 60})
    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "request_too_large")


def test_a_bug_is_told_without_its_text() -> None:
    answer = post("/v1/messages", ValueError("secret"))
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "api_error")
    assert "secret" not in answer.text


def test_half_a_surrogate_pair_can_be_quoted() -> None:
    assert post("/v1/messages", RequestError("got '\ud800'")).json()["error"]["message"] == r"got '\ud800'"


def test_what_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ajet.http"):
        answer = post("/v1/messages", UnavailableError("no engine"))
    assert answer.json()["request_id"] in caplog.text
    assert "no engine" in caplog.text
