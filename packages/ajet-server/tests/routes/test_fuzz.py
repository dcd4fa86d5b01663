"""Every dialect is sent bodies that were valid once. No answer is a mistake of ours, and nothing is left behind."""

import asyncio
import gc
import json
import logging
import random
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from api_helpers import Api, bearer, wait_for
from fuzz_bodies import BODIES, mutated
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server_helpers import WorkerFolder, listening, make_job
from template_helpers import make_family

from ajet_server.gateway.render import ChatRenderer
from ajet_server.settings import ServerSettings
from ajet_server.wiring import Server

_SAID = ("<think>", "hm</think>", "hello", "é🌍", '<tool_call>\n{"name": "look", "arguments": {"x": 1}}\n</tool_call>')
_BROKEN = ("<tool_call>", '{"name": "look"', "</think>\n\n", "END", "<|im_end|>", "\n", "{", "#", "##")


class Complaints(logging.Handler):
    """Collects what the server's log says of mistakes."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


@pytest.fixture(scope="module")
def complaints() -> Iterator[Complaints]:
    handler = Complaints()
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio", "ajet")]
    for logger in loggers:
        logger.addHandler(handler)
    yield handler
    for logger in loggers:
        logger.removeHandler(handler)


@pytest.fixture(scope="module", params=["qwen3", "llama3_1", "deepseekv3"])
def fuzzed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, complaints: Complaints
) -> Iterator[Api]:
    """A server whose model has tools and thinking, and says anything."""
    folder = tmp_path_factory.mktemp("fuzzed")
    made = make_family(request.param, folder / "model")
    worker = WorkerFolder(folder / "worker")
    script = Path(__file__).parents[1] / "fuzz_worker.py"
    encode = ChatRenderer(made).encode
    said = [encode(text).tolist() for text in (*_SAID, *_BROKEN)]
    (worker.folder / "said.json").write_text(json.dumps([*said, encode("🌍").tolist()[:1], [0], [40]]))
    job = make_job(folder / "model", limits={"max_open_episodes": 5000})
    command = (sys.executable, str(script), "--folder", str(worker.folder))
    server = Server(ServerSettings("127.0.0.1", 0, folder / "data", job, max_request_bytes=200_000), command)
    with listening(server) as url, httpx2.Client(base_url=url, timeout=20) as http:
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        wait_for(lambda: http.get("/readyz").status_code == 200)
        yield Api(http, server, worker)
    assert complaints.found == []


@pytest.mark.parametrize("path", BODIES)
def test_the_bodies_are_valid(fuzzed: Api, path: str) -> None:
    key = fuzzed.open(kind="eval")["api_key"]
    for stream in (True, False):
        body = BODIES[path] | {"stream": stream}
        if not stream:
            body.pop("stream_options", None)
        answer = fuzzed.http.post(path, json=body, headers=bearer(key))
        assert answer.status_code == 200, answer.text


@pytest.fixture(scope="module")
def eval_key(fuzzed: Api) -> str:
    return fuzzed.open(kind="eval")["api_key"]

import os, collections
HEADS = collections.Counter()

@pytest.mark.timeout(1000)
@pytest.mark.parametrize("path", BODIES)
def test_no_body_is_a_mistake_of_ours(fuzzed: Api, eval_key: str, path: str) -> None:
    @settings(max_examples=int(os.environ.get("FUZZ", "200")), deadline=None, database=None)
    @given(mutated(BODIES[path]))
    def check(case: tuple[bytes, str]) -> None:
        content, _ = case
        answer = fuzzed.http.post(path, content=content, headers=bearer(eval_key))
        assert answer.status_code in (200, 400, 404, 413), answer.text
        if answer.status_code == 200:
            HEADS["200"] += 1
            return
        error = answer.json()["error"]
        m = error["message"]
        HEADS[m.split(":")[0].split(".")[0].split(" ")[0], m.split(":")[1][:0] if ":" in m else m] += 1

    check()
    print(path, HEADS)
    HEADS.clear()
