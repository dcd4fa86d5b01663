"""Our server as a process of its own, and the episodes that are opened at it."""

import http.client
import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from processes import Child

from .load import Target

_START_S, _OPEN_S = 60.0, 30.0
_CHAT = "/v1/chat/completions"


class Ours:
    """A server in front of `worker.py`, with a data folder of its own; use as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._data = TemporaryDirectory()
        script = Path(__file__).with_name("server.py")
        self._child = Child([sys.executable, str(script), str(folder), f"{self._data.name}/data"])
        self._episodes: list[str] = []

    def __enter__(self) -> "Ours":
        url = urlsplit(self._child.answer(_START_S))
        self._port = url.port or 0
        self._http = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_START_S)
        return self

    def __exit__(self, *_: Any) -> None:
        self._http.close()
        self._child.stop()
        self._data.cleanup()

    def open(self, count: int) -> Target:
        """So many new episodes, one for each client."""
        grants = [self._ask("POST", "/api/episodes", _episode()) for _ in range(count)]
        self._http.close()  # opened again by the next question: meanwhile the server would end an idle connection
        self._episodes += [grant["episode_id"] for grant in grants]
        return Target("ours", self._port, [(_CHAT, grant["api_key"]) for grant in grants])

    def captured(self) -> int:
        """Calls that the ledger holds, of all episodes opened here."""
        views = [self._ask("GET", f"/api/episodes/{name}") for name in self._episodes]
        self._http.close()
        return sum(view["calls"] for view in views)

    def resident_bytes(self) -> int:
        """Memory of the API process. Linux only."""
        pages = int(Path(f"/proc/{self._child.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        self._http.request(method, path, json.dumps(body) if body else None, headers)
        response = self._http.getresponse()
        text = response.read()
        if response.status >= 300:
            raise RuntimeError(f"{method} {path}: {response.status} {text.decode()}")
        answer: dict[str, Any] = json.loads(text)
        return answer


def _episode() -> dict[str, Any]:
    return {"request_id": uuid4().hex, "task": "benchmark", "wait_s": _OPEN_S}
