"""Real servers as processes of their own, on free ports, with a micro model made on the spot."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ajet_server.demo.micro import make_micro_model
from live_server import LiveServer, StartServer, micro_job, shared_client


@pytest.fixture(scope="session")
def micro_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_micro_model(tmp_path_factory.mktemp("model") / "micro", seed=0)


@pytest.fixture(scope="session", autouse=True)
def _close_shared_client() -> Iterator[None]:
    yield
    shared_client().close()


@pytest.fixture
def start_server(tmp_path: Path, micro_model: Path) -> Iterator[StartServer]:
    """Starts servers that end with the test. Keyword arguments are sections of the job."""
    started: list[LiveServer] = []

    def start(data_dir: Path | None = None, **sections: object) -> LiveServer:
        folder = data_dir or tmp_path / f"server-{len(started)}"
        server = LiveServer(folder, micro_job(micro_model, **sections))
        started.append(server)
        server.start()
        return server

    yield start
    for server in started:
        server.end()


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory, micro_model: Path) -> Iterator[LiveServer]:
    """One rolling server for the tests of a module that leave it as they find it."""
    server = LiveServer(
        tmp_path_factory.mktemp("shared") / "server",
        micro_job(micro_model, batch={"policy": "groups", "size": 64, "group_size": 8}),
    )
    server.start()
    server.wait_until_rolling()
    yield server
    server.end()
