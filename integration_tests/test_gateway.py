"""What the gateway promises, with a real engine behind it: exact ids in every dialect, also over a kill -9."""

import json
from typing import Any

import httpx2
import numpy as np
import pytest

from live_server import LiveServer, StartServer

_SAID = [{"role": "user", "content": "1 2 3"}]
_ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": _SAID, "stream_options": {"include_usage": True}},
    "/v1/completions": {"prompt": "1 2 3", "stream_options": {"include_usage": True}},
    "/v1/responses": {"input": "1 2 3", "max_output_tokens": 12},
    "/v1/messages": {"messages": _SAID},
}


def _ask(server: LiveServer, key: str, path: str, body: dict[str, Any], tries: int = 0) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {key}", "x-stainless-retry-count": str(tries)}
    with server.http() as http:
        answer = http.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def _calls(server: LiveServer, episode_id: str) -> list[tuple[str, str | None, list[int], list[int]]]:
    """(id, parent, stored prompt ids, completion ids)."""
    rows = server.rows(
        "SELECT id, parent_id, prompt_ids, completion_ids FROM calls WHERE episode_id = ? ORDER BY seq", episode_id
    )
    return [(name, parent, _ids(prompt), _ids(completion)) for name, parent, prompt, completion in rows]


def _ids(data: bytes) -> list[int]:
    return np.frombuffer(data, "<i4").tolist()


@pytest.mark.parametrize("path", _ASKED)
def test_a_stream_tells_every_sampled_id(shared_server: LiveServer, path: str) -> None:
    limit = {} if path == "/v1/responses" else {"max_tokens": 12}
    with shared_server.swarm() as swarm, swarm.episode(task=path, kind="eval") as episode:
        body = {"model": episode.model, "stream": True, "return_token_ids": True, **_ASKED[path], **limit}
        text = _ask(shared_server, episode.api_key, path, body).text
        episode.reward(0)
    ((_, _, prompt, completion),) = _calls(shared_server, episode.id)
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    told, counted = _told([json.loads(line) for line in lines])
    assert told == completion
    assert counted == (len(prompt), len(completion))


def _told(events: list[dict[str, Any]]) -> tuple[list[int], tuple[int, int]]:
    """The ids and the usage of a stream, in whichever dialect."""
    last = events[-1]
    if "choices" in last:
        ids = [token for event in events for choice in event["choices"] for token in choice.get("token_ids", [])]
        return ids, (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"])
    whole = last.get("response") or events[-2]
    usage = whole["usage"]
    given = usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)  # Anthropic counts these apart
    return whole["token_ids"], (given, usage["output_tokens"])


def test_a_killed_server_gives_the_same_answer_and_goes_on(start_server: StartServer) -> None:
    server = start_server()
    server.wait_until_rolling()
    with server.http() as http:
        grant = http.post("/api/episodes", json={"request_id": "killed", "task": "t"}).json()
    body = {"model": grant["model"], "messages": _SAID, "max_tokens": 10, "n": 2, "logprobs": True}
    first = _ask(server, grant["api_key"], "/v1/chat/completions", body)
    server.kill()
    server.start()
    server.wait_until_rolling()
    again = _ask(server, grant["api_key"], "/v1/chat/completions", body, tries=1)
    assert again.content == first.content
    (name, _, prompt, completion), second = _calls(server, grant["episode_id"])
    assert (name, second[1]) == (first.json()["id"], None)
    said = first.json()["choices"][0]["message"] | {"role": "assistant"}
    more = [*_SAID, said, {"role": "user", "content": "4"}]
    answer = _ask(server, grant["api_key"], "/v1/chat/completions", body | {"messages": more, "n": 1}, tries=1)
    third = _calls(server, grant["episode_id"])[2]
    # Two choices may read alike, and the newer one is then gone on from.
    assert third[1] in (name, second[0])
    begins = prompt + (completion if third[1] == name else second[3])
    assert answer.json()["usage"]["prompt_tokens"] == len(begins) + len(third[2])
