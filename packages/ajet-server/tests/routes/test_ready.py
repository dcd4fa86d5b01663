"""`POST /api/ready`."""

from pathlib import Path

import httpx2
import pytest
from api_helpers import Api, ours
from server_helpers import WorkerFolder, listening, make_job

from ajet_server.settings import ServerSettings
from ajet_server.wiring import Server


def test_where_nobody_is_asked_it_is_refused(api: Api) -> None:
    answer = api.http.post("/api/ready", json={"client_id": "a"})
    assert answer.status_code == 409
    assert "asks no client" in ours(answer)["message"]


@pytest.mark.parametrize(
    "body", [{}, {"client_id": ""}, {"client_id": "a", "ready": "perhaps"}, {"client_id": "a", "x": 1}]
)
def test_bodies_that_are_wrong(api: Api, body: object) -> None:
    answer = api.http.post("/api/ready", json=body)
    assert (answer.status_code, ours(answer)["code"]) == (400, "invalid_request")


def test_it_may_be_said_again_and_taken_back(model: Path, tmp_path: Path) -> None:
    job = make_job(model, batch={"policy": "all_clients", "size": None})
    server = Server(ServerSettings("127.0.0.1", 0, tmp_path / "d", job), WorkerFolder(tmp_path / "w").command)
    with listening(server) as url, httpx2.Client(base_url=url, timeout=20) as http:
        for ready, expected in ((True, ["a"]), (True, ["a"]), (False, []), (True, ["a"])):
            pool = http.post("/api/ready", json={"client_id": "a", "ready": ready}).json()
            assert pool["clients_ready"] == expected
        assert http.get("/api/status").json()["pool"]["clients_ready"] == ["a"]
