from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from api_helpers import Api, wait_for
from server_helpers import WorkerFolder, listening, make_job

from ajet_server.settings import ServerSettings
from ajet_server.wiring import Server


@pytest.fixture(scope="module")
def api(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A rolling server on a real socket, whose batches never become complete."""
    folder = tmp_path_factory.mktemp("server")
    worker = WorkerFolder(folder / "worker")
    job = make_job(model, batch={"policy": "episodes", "size": 4000, "group_size": 4})
    settings = ServerSettings("127.0.0.1", 0, folder / "data", job, max_request_bytes=200_000)
    server = Server(settings, worker.command)
    with listening(server) as url, httpx2.Client(base_url=url, timeout=20) as http:
        api = Api(http, server, worker)
        wait_for(lambda: http.get("/readyz").status_code == 200)
        yield api
