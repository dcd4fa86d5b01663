"""Bad input, from outside: a clear error with the right status, and nothing lost."""

import shutil
import socket
from pathlib import Path

import httpx2
import pytest

from live_server import LiveServer, StartServer, last_json, run_cli, say, wait_for_version


def _open(http: httpx2.Client, request_id: str, **fields: object) -> dict[str, str]:
    answer = http.post("/api/episodes", json={"request_id": request_id, "task": request_id, "kind": "eval", **fields})
    assert answer.status_code == 201, answer.text
    grant: dict[str, str] = answer.json()
    return grant


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


_CHAT = {"model": "micro", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@pytest.mark.parametrize("headers", [{}, _bearer("sk-ajet-wrong"), {"Authorization": "Basic abc"}])
def test_a_wrong_key_is_401_in_openai_shape(shared_server: LiveServer, headers: dict[str, str]) -> None:
    with shared_server.http() as http:
        answer = http.post("/v1/chat/completions", json=_CHAT, headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert answer.json()["error"]["type"] == "authentication_error"


def test_a_closed_episodes_key_is_refused(shared_server: LiveServer) -> None:
    with shared_server.http() as http:
        grant = _open(http, "closed-key")
        url = f"/api/episodes/{grant['episode_id']}"
        assert http.post(f"{url}/abort", json={}, headers=_bearer(grant["control_key"])).status_code == 200
        answer = http.post("/v1/chat/completions", json=_CHAT, headers=_bearer(grant["api_key"]))
        late = http.post(f"{url}/finish", json={"reward": 1}, headers=_bearer(grant["control_key"]))
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "episode_closed")
    assert (late.status_code, late.json()["error"]["code"]) == (410, "episode_closed")


def test_the_agents_key_cannot_set_its_own_reward(shared_server: LiveServer) -> None:
    with shared_server.http() as http:
        grant = _open(http, "own-reward")
        url = f"/api/episodes/{grant['episode_id']}"
        answer = http.post(f"{url}/finish", json={"reward": 1}, headers=_bearer(grant["api_key"]))
        http.post(f"{url}/abort", json={}, headers=_bearer(grant["control_key"]))
    assert answer.status_code == 401


@pytest.mark.parametrize("reward", ["NaN", "Infinity", "1e999", '"high"', "null", "[]", "1e7"])
def test_a_reward_that_is_no_finite_number_is_400_and_the_episode_stays_open(
    shared_server: LiveServer, reward: str
) -> None:
    with shared_server.http() as http:
        grant = _open(http, f"reward-{reward}")
        url, headers = f"/api/episodes/{grant['episode_id']}", _bearer(grant["control_key"])
        json_headers = headers | {"Content-Type": "application/json"}
        answer = http.post(f"{url}/finish", content=f'{{"reward": {reward}}}'.encode(), headers=json_headers)
        again = http.post(f"{url}/finish", json={"reward": 0.25}, headers=headers)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["field"] == "reward"
    assert (again.status_code, again.json()["reward"]) == (200, 0.25)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"request_id": "x", "kind": "practice"}, "kind"),
        ({"request_id": "x", "tusk": 1}, "tusk"),
        ({}, "request_id"),
        ({"request_id": "x", "wait_s": 1e9}, "wait_s"),
    ],
)
def test_a_wrong_field_of_the_control_plane_is_named(
    shared_server: LiveServer, body: dict[str, object], field: str
) -> None:
    with shared_server.http() as http:
        answer = http.post("/api/episodes", json=body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


def test_finishing_twice_is_harmless_and_changing_ones_mind_is_not_possible(shared_server: LiveServer) -> None:
    with shared_server.http() as http:
        grant = _open(http, "twice")
        url, headers = f"/api/episodes/{grant['episode_id']}", _bearer(grant["control_key"])
        answers = [http.post(f"{url}/finish", json={"reward": reward}, headers=headers) for reward in (1, 1, 2)]
    assert [answer.status_code for answer in answers] == [200, 200, 410]
    assert answers[0].json() == answers[1].json()


def test_a_train_episode_without_a_call_cannot_finish(shared_server: LiveServer) -> None:
    with shared_server.http() as http:
        grant = _open(http, "no-calls", kind="train")
        url, headers = f"/api/episodes/{grant['episode_id']}", _bearer(grant["control_key"])
        answer = http.post(f"{url}/finish", json={"reward": 1}, headers=headers)
        http.post(f"{url}/abort", json={}, headers=headers)
    assert answer.status_code == 409
    assert "abort it" in answer.json()["error"]["message"]


def test_the_job_cannot_change_while_the_engine_runs(shared_server: LiveServer) -> None:
    with shared_server.http() as http:
        answer = http.put("/api/job", json=http.get("/api/job").json())
    assert answer.status_code == 409
    assert "stop it" in answer.json()["error"]["message"]


def test_port_taken(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        result = run_cli("server", "start", "--port", str(port), "--data-dir", str(tmp_path / "d"), "--json")
    assert result.returncode == 1
    assert last_json(result.stderr)["error"]["field"] == "port"
    assert "--port" in result.stderr


def test_model_folder_missing(tmp_path: Path) -> None:
    result = run_cli("server", "start", "--port", "0", "--data-dir", str(tmp_path / "d"), "model.path=/no/such/folder")
    assert result.returncode == 1
    assert result.stderr.startswith("error: model.path: '/no/such/folder' is not a folder")
    assert "Traceback" not in result.stderr


def test_a_data_folder_serves_one_server_at_a_time(shared_server: LiveServer) -> None:
    result = run_cli("server", "start", "--port", "0", "--data-dir", str(shared_server.data_dir))
    assert result.returncode == 1
    assert f"in use by another server (process {shared_server.pid}" in result.stderr


def test_a_corrupted_ledger_is_refused_and_left_alone(tmp_path: Path) -> None:
    data_dir = tmp_path / "d"
    data_dir.mkdir()
    ledger = data_dir / "ledger.sqlite"
    ledger.write_bytes(b"not a database " * 1000)
    before = ledger.read_bytes()
    result = run_cli("server", "start", "--port", "0", "--data-dir", str(data_dir))
    assert result.returncode == 1
    assert "ledger.sqlite is corrupted" in result.stderr
    assert ledger.read_bytes() == before


def test_a_corrupted_checkpoint_stops_the_engine_with_a_reason(start_server: StartServer) -> None:
    server = start_server(batch={"policy": "groups", "size": 1, "group_size": 2})
    server.wait_until_rolling()
    with server.swarm() as swarm:
        _train_one_step(swarm, server)
    server.end()
    (weights,) = (server.data_dir / "checkpoints").glob("step-*/model/model.safetensors")
    kept = weights.with_name("kept")
    shutil.copy(weights, kept)
    damaged = bytearray(weights.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    weights.write_bytes(damaged)

    server.start()
    with server.http() as http:
        state = _until_settled(http)
        refused = http.post("/api/episodes", json={"request_id": "x", "task": 1})
    assert state["state"] == "failed"
    assert "model.safetensors" in state["cause"]
    assert (refused.status_code, refused.json()["error"]["code"]) == (500, "engine_failed")

    shutil.move(kept, weights)
    with server.swarm() as swarm:
        swarm.start()
        assert swarm.wait_until_serving(100).step == 1


def _train_one_step(swarm: object, server: LiveServer) -> None:
    from ajet_client import Swarm

    assert isinstance(swarm, Swarm)
    report = swarm.run(lambda episode: float(len(say(episode, "go"))), ["t"], group_size=2, progress=False)
    assert report.finished == 2
    wait_for_version(swarm, 1)


def _until_settled(http: httpx2.Client) -> dict[str, str]:
    """Follows the event stream until the engine rolls or fails, and returns the status then."""
    with http.stream("GET", "/api/events") as stream:
        for line in stream.iter_lines():
            if '"state":"failed"' in line.replace(" ", ""):
                break
    status: dict[str, str] = http.get("/api/status").json()
    return status
