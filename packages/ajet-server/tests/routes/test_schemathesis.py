"""Every operation of the documentation, as schemathesis makes requests from it: right ones and wrong ones."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import requests
import schemathesis
from api_helpers import Api, wait_for
from complaints import no_complaints
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from server_helpers import WorkerFolder, listening, make_job

from ajet_server.settings import ServerSettings
from ajet_server.wiring import Server

_CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
_TIMEOUT_S = 20
_FEW = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def roomy(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A rolling server with room for all that is opened here."""
    folder = tmp_path_factory.mktemp("roomy")
    worker = WorkerFolder(folder / "worker")
    job = make_job(model, batch={"policy": "episodes", "size": 4000}, limits={"max_open_episodes": 4000})
    server = Server(ServerSettings("127.0.0.1", 0, folder / "data", job), worker.command)
    with no_complaints(), listening(server) as url, httpx2.Client(base_url=url, timeout=_TIMEOUT_S) as http:
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        wait_for(lambda: http.get("/readyz").status_code == 200)
        yield Api(http, server, worker)


@pytest.mark.parametrize("mode", GenerationMode)
def test_every_operation(roomy: Api, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{roomy.http.base_url}/api/openapi.json", timeout=_TIMEOUT_S)
    tried = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path != "/api/stop":  # the engine stays for the others
            tried += _try(roomy, operation, mode)
    assert tried >= 8


def _try(api: Api, operation: Any, mode: GenerationMode) -> bool:
    """Whether there was something to try: nothing is wrong with a request that says nothing."""
    headers = {"Authorization": f"Bearer {_key(api, operation.path)}"}

    @_FEW
    @given(operation.as_strategy(generation_mode=mode))
    def check(case: Case) -> None:
        if mode.is_positive and "episode_id" in case.path_parameters:
            case.path_parameters["episode_id"] = api.open()["episode_id"]
        if operation.path == "/api/events":  # has no end
            _look(case.as_transport_kwargs(headers=headers))
        else:
            case.call_and_validate(checks=_CHECKS, headers=headers, timeout=_TIMEOUT_S)

    try:
        check()
    except Unsatisfiable:
        return False
    return True


def _key(api: Api, path: str) -> str:
    return api.open(kind="eval")["api_key"] if path.startswith("/v1") else api.server.admin_token


def _look(arguments: dict[str, Any]) -> None:
    with requests.request(**arguments, stream=True, timeout=_TIMEOUT_S) as answer:
        assert answer.status_code in (200, 400)
