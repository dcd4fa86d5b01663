"""What tests of the routes say to a server."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from server_helpers import WorkerFolder, listening, make_job

from ajet_core.ids import new_request_id
from ajet_server.settings import ServerSettings
from ajet_server.wiring import Server

HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


def wait_for(condition: Callable[[], bool], timeout_s: float = 20) -> None:
    """Polls until `condition` holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


@dataclass
class Api:
    http: httpx2.Client
    server: Server
    worker: WorkerFolder

    @property
    def url(self) -> str:
        """Without a slash at the end."""
        return str(self.http.base_url).rstrip("/")

    def open(self, **fields: Any) -> dict[str, Any]:
        """A grant."""
        body = {"request_id": new_request_id(), "task": "t", **fields}
        answer = self.http.post("/api/episodes", json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()

    def chat(self, key: str, **fields: Any) -> httpx2.Response:
        return self.http.post("/v1/chat/completions", json=HELLO | fields, headers=bearer(key))

    def finish(self, grant: dict[str, Any], **body: Any) -> httpx2.Response:
        return self.control(grant, "finish", json={"reward": 1.0, **body})

    def control(self, grant: dict[str, Any], verb: str, **request: Any) -> httpx2.Response:
        key = request.pop("key", grant["control_key"])
        headers = bearer(key) | request.pop("headers", {})
        return self.http.post(f"/api/episodes/{grant['episode_id']}/{verb}", headers=headers, **request)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def ours(answer: httpx2.Response) -> dict[str, Any]:
    """The error of the control plane's shape."""
    error = answer.json()["error"]
    assert error.keys() == {"code", "message", "field", "retry_after_s"}
    return error


def openais(answer: httpx2.Response) -> dict[str, Any]:
    """The error of OpenAI's shape."""
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


@contextmanager
def serving(folder: Path, model: Path, *, require_token: bool = False, **sections: Any) -> Iterator[Api]:
    """A rolling server on a real socket, whose batches never become complete."""
    worker = WorkerFolder(folder / "worker")
    job = make_job(model, batch={"policy": "episodes", "size": 4000, "group_size": 4}, **sections)
    told = ServerSettings("127.0.0.1", 0, folder / "data", job, 200_000, require_token=require_token)
    server = Server(told, worker.command)
    with listening(server) as url, httpx2.Client(base_url=url, timeout=20) as http:
        wait_for(lambda: http.get("/readyz").status_code == 200)
        yield Api(http, server, worker)
    server.data_dir.close()  # a lock knows its thread: the one of `listening` cannot let go of it
