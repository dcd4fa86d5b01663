"""Every dialect is sent bodies that were valid once. No answer is a mistake of ours, and nothing is left behind.

`AJET_FUZZ_EXAMPLES` says how many bodies for each dialect and template.
"""

import asyncio
import contextlib
import gc
import json
import logging
import os
import random
import re
import socket
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from api_helpers import Api, bearer, openais, wait_for
from complaints import no_complaints
from fuzz_bodies import BODIES, PREVIOUS, mutated
from hypothesis import given, settings
from hypothesis import strategies as st
from server_helpers import WorkerFolder, listening, make_job
from template_helpers import make_family

from ajet_server.gateway.render import ChatRenderer
from ajet_server.gateway.session import Session
from ajet_server.settings import ServerSettings
from ajet_server.wiring import Server

_EXAMPLES = int(os.environ.get("AJET_FUZZ_EXAMPLES", "60"))
_SYNONYMS = {"max_tokens"}
"""Fields that a refusal may name though the body has another name for them."""
_WORKER = Path(__file__).parents[1] / "fuzz_worker.py"
_SAID = ("<think>", "hm</think>", "hello", "é🌍", '<tool_call>\n{"name": "look", "arguments": {"x": 1}}\n</tool_call>')
_BROKEN = ("<tool_call>", '{"name": "look"', "</think>\n\n", "END", "<|im_end|>", "\n", "{", "#", "##")


@pytest.fixture(scope="module", params=["qwen3", "llama3_1", "deepseekv3"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server whose model has tools and thinking, and says anything."""
    folder = tmp_path_factory.mktemp("fuzzed")
    encode = ChatRenderer(make_family(request.param, folder / "model")).encode
    said = [encode(text).tolist() for text in (*_SAID, *_BROKEN)]
    (folder / "said").write_text(json.dumps([*said, encode("🌍").tolist()[:1], [0], [40]]))
    command = (sys.executable, str(_WORKER), "--said", str(folder / "said"))
    job = make_job(folder / "model", limits={"max_open_episodes": 5000})
    server = Server(ServerSettings("127.0.0.1", 0, folder / "data", job, max_request_bytes=200_000), command)
    with no_complaints(), listening(server) as url, httpx2.Client(base_url=url, timeout=20) as http:
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        wait_for(lambda: http.get("/readyz").status_code == 200)
        yield Api(http, server, WorkerFolder(folder / "unused"))


@pytest.fixture(scope="module")
def fuzzed(served: Api) -> Iterator[Api]:
    """Looks afterwards that no call, run, session or task was left."""
    tasks = _tasks(served) - Counter({"RequestResponseCycle.run_asgi": 1})  # the last one may not be gone yet
    yield served
    _assert_nothing_runs(served)
    _abort_all(served)
    wait_for(lambda: not _sessions(served))
    wait_for(lambda: not _tasks(served) - tasks)


def _abort_all(api: Api) -> None:
    for state in api.server.runtime.episodes._open.states:
        grant = {"episode_id": state.record.id, "control_key": api.server.admin_token}
        assert api.control(grant, "abort", json={}).status_code == 200


def _assert_nothing_runs(api: Api) -> None:
    runtime = api.server.runtime
    states, supervisor = runtime.episodes._open.states, runtime.conductor.supervisor
    wait_for(lambda: not supervisor._pending)
    wait_for(lambda: not any(state.in_flight or state.reserved for state in states))
    wait_for(lambda: not any(session.running for session in _sessions(api)))


def _sessions(api: Api) -> list[Session]:
    gc.collect()
    return list(api.server.runtime.gateway._sessions.values())


def _tasks(api: Api) -> Counter[str]:
    """How many tasks of each coroutine there are in the server's loop."""
    tasks = asyncio.all_tasks(api.server.runtime.conductor._tasks[0].get_loop())
    names = Counter(task.get_coro().__qualname__ for task in tasks)
    del names["Condition.wait_for"]  # the conductor's, which begins another every second
    return names


def _valid(path: str, *, stream: bool) -> dict[str, Any]:
    left_out = {"previous_response_id"} if stream else {"previous_response_id", "stream_options"}
    body = {name: value for name, value in BODIES[path].items() if name not in left_out}
    return body if path.endswith("count_tokens") else body | {"stream": stream}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", BODIES)
def test_the_bodies_are_valid(fuzzed: Api, path: str, stream: bool) -> None:
    key = fuzzed.open(kind="eval")["api_key"]
    answer = fuzzed.http.post(path, json=_valid(path, stream=stream), headers=bearer(key))
    assert answer.status_code == 200, answer.text
    _check_answer(answer)


@pytest.mark.parametrize("path", BODIES)
def test_no_body_is_a_mistake_of_ours(fuzzed: Api, path: str) -> None:
    keys = {kind: fuzzed.open(kind=kind)["api_key"] for kind in ("eval", "train")}
    seen = ["null"]

    @settings(max_examples=_EXAMPLES, deadline=None)
    @given(mutated(BODIES[path]), st.sampled_from(["eval", "eval", "train"]), st.booleans())
    def check(content: bytes, kind: str, retry: bool) -> None:
        content = content.replace(json.dumps(PREVIOUS).encode(), seen[-1].encode())
        headers = bearer(keys[kind]) | {"x-stainless-retry-count": str(int(retry))}
        answer = fuzzed.http.post(path, content=content, headers=headers)
        if answer.status_code == 200:
            _check_answer(answer)
            seen.extend(re.findall(r'"resp_[0-9a-z_]+"', answer.text)[:1])
        else:
            _check_refusal(answer, content, path)

    check()


def _check_answer(answer: httpx2.Response) -> None:
    """JSON to the letter; a stream says that it is whole, or why it is not."""
    if answer.headers["content-type"].startswith("application/json"):
        _strict(answer.text)
        return
    *events, last, end = answer.text.split("\n\n")
    assert end == ""
    for event in events:
        _strict(event.partition("data: ")[2])
    assert any(mark in last for mark in ("[DONE]", "message_stop", "response.completed", "response.incomplete"))


def _strict(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def _check_refusal(answer: httpx2.Response, content: bytes, path: str) -> None:
    """In the dialect's shape, naming a field of the body."""
    assert answer.status_code in (400, 404, 413), answer.text
    body = answer.json()
    if path.startswith("/v1/messages"):
        assert body.keys() == {"type", "error", "request_id"}
        assert body["error"].keys() == {"type", "message", "details"}
    else:
        openais(answer)
    message: str = body["error"]["message"]
    assert message
    if message.startswith(("the body", f"POST {path}")):
        return
    named = re.match(r"[^.:\[]*", message)
    known = {
        *BODIES[path],
        *_SYNONYMS,
        *(name.encode("utf-8", "backslashreplace").decode() for name in json.loads(content)),
    }
    assert named is not None
    assert named[0] in known, message
    if not path.startswith("/v1/messages"):
        assert body["error"]["param"].startswith(named[0])


@pytest.mark.parametrize("path", BODIES)
def test_callers_that_leave(fuzzed: Api, path: str) -> None:
    """At any point: within the request, before the answer, in the middle of a stream; by FIN and by RST."""
    key, chance = fuzzed.open(kind="eval")["api_key"], random.Random(path)
    url = fuzzed.http.base_url
    for stream in [True, True, True, False] * 10:
        body = json.dumps(_valid(path, stream=stream)).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {url.host}:{url.port}\r\nAuthorization: Bearer {key}\r\n"
        request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
        with socket.create_connection((url.host, url.port or 80), 20) as caller:
            caller.sendall(request[: chance.choice([len(request), len(request), chance.randrange(len(request))])])
            if chance.random() < 0.7 and len(request):
                caller.settimeout(chance.choice([0.001, 0.02, 0.2]))
                with contextlib.suppress(TimeoutError):
                    caller.recv(chance.choice([1, 300, 3000]))
            if chance.random() < 0.5:
                caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    _assert_nothing_runs(fuzzed)
    answer = fuzzed.http.post(path, json=_valid(path, stream=False), headers=bearer(key))
    assert answer.status_code == 200, answer.text
