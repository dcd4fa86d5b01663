"""One model in two roles of one episode: each role learns what it is rewarded for."""

import json

import anthropic
import openai
import pytest

from ajet_client import Episode, Task
from live_server import StartServer, last_json, run_cli, say, share_of_digits, wait_for_version

pytestmark = pytest.mark.timeout(300)
_ROUNDS = 8


def _share_of_letters(text: str) -> float:
    return sum(character.isalpha() and character.isascii() for character in text) / max(len(text), 1)


def _play(episode: Episode) -> None:
    digits = share_of_digits(say(episode.role("white"), "white", max_tokens=12))
    letters = _share_of_letters(say(episode.role("black"), "BLACK", max_tokens=12))
    episode.reward({"white": digits, "black": letters}, white=digits, black=letters)


def test_two_roles_learn_to_differ(start_server: StartServer) -> None:
    server = start_server(batch={"policy": "informative_groups", "size": 4, "group_size": 8}, seed=11)
    server.wait_until_rolling()
    means: list[dict[str, float]] = []
    with server.swarm() as swarm:
        for round_number in range(_ROUNDS):
            tasks = [Task(data={"round": round_number, "task": number}) for number in range(4)]
            report = swarm.run(_play, tasks, concurrency=32, progress=False)
            assert (report.finished, report.failed) == (32, 0)
            means.append(report.metric_means)
        wait_for_version(swarm, _ROUNDS)
    for role in ("white", "black"):
        learned = [mean[role] for mean in means]
        assert sum(learned[-2:]) / 2 > sum(learned[:2]) / 2 + 0.1, means
    (done,) = server.rows("SELECT report FROM batches WHERE step = 1")[0]
    report = json.loads(done)
    assert (report["episodes"], report["groups"], report["calls"]) == (32, 4, 64)
    assert last_json(run_cli("ledger", "check", str(server.data_dir), "--json").stdout)["problems"] == []


def test_the_sdks_play_roles_and_a_restart_forgets_none(start_server: StartServer) -> None:
    server = start_server(batch={"policy": "episodes", "size": 1})
    server.wait_until_rolling()
    with server.http() as http:
        grant = http.post("/api/episodes", json={"request_id": "r", "task": "t"}).json()
    question = [{"role": "user", "content": "hello"}]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=f"{grant['api_key']}.white") as client:
        client.chat.completions.create(model=grant["model"], messages=question, max_tokens=4)  # type: ignore[arg-type]
    server.kill()
    server.start()
    server.wait_until_rolling()
    with anthropic.Anthropic(base_url=server.url, api_key=f"{grant['api_key']}.black") as client:
        client.messages.create(model=grant["model"], messages=question, max_tokens=4)  # type: ignore[arg-type]
    headers = {"Authorization": f"Bearer {grant['control_key']}"}
    finish = f"/api/episodes/{grant['episode_id']}/finish"
    with server.http() as http:
        lacking = http.post(finish, json={"rewards": {"black": 1}}, headers=headers)
        assert (lacking.status_code, lacking.json()["error"]["field"]) == (400, "rewards.white")
        done = http.post(finish, json={"rewards": {"black": 1, "white": 0}}, headers=headers)
        assert (done.status_code, done.json()["reward"]) == (200, 0.5)
    with server.swarm() as swarm:
        wait_for_version(swarm, 1)
