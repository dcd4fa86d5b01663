"""One model in two roles of one episode: each role learns what it is rewarded for."""

import json

import anthropic
import openai
import pytest

from ajet_client import Episode, Task
from live_server import StartServer, last_json, run_cli, say, share_of_digits, wait_for_version

pytestmark = pytest.mark.timeout(300)
_ROUNDS = 24
_SAID = {"white": "1 1 1 1 1 1 1 1 1 1 1 1", "black": "zzzzzzzzzzzzzzzzzzzzzzzz"}
"""What each role is told."""


def _share_of_letters(text: str) -> float:
    return sum(character.isalpha() and character.isascii() for character in text) / max(len(text), 1)


def _play(episode: Episode) -> dict[str, float]:
    said = {name: say(episode.role(name), text, max_tokens=12) for name, text in _SAID.items()}
    return {"white": share_of_digits(said["white"]), "black": _share_of_letters(said["black"])}


def test_two_roles_learn_to_differ(start_server: StartServer) -> None:
    """A model that speaks alike in both roles has rewards whose sum is 1 at most."""
    server = start_server(batch={"policy": "informative_groups", "size": 4, "group_size": 8}, seed=11)
    server.wait_until_rolling()
    sums: list[float] = []
    with server.swarm() as swarm:
        for round_number in range(_ROUNDS):
            tasks = [Task(data={"round": round_number, "task": number}) for number in range(4)]
            report = swarm.run(_play, tasks, concurrency=32, progress=False)
            assert (report.finished, report.failed) == (32, 0)
            assert report.reward_mean is not None
            sums.append(2 * report.reward_mean)
            if min(sums[-2:]) > 1.15:
                break
        wait_for_version(swarm, 1)
    assert sums[0] < 0.8, "they had to learn it"
    assert min(sums[-2:]) > 1.15, sums
    (text,) = server.rows("SELECT report FROM batches WHERE step = 1")[0]
    done = json.loads(text)
    assert (done["episodes"], done["groups"], done["calls"]) == (32, 4, 64)
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
