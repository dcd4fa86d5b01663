# ruff: noqa: PT012 - what must raise here are whole `with` blocks
"""One model in several roles of an episode, against the fake server."""

import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ajet_client import CommandAgent, Episode, Role, Swarm, together
from ajet_client.outcome import Outcome, parse_outcome
from ajet_client.testing import FakeServer
from ajet_core.errors import RequestError, RewardError

REWARDS = {"white": 1.0, "black": -1.0}


def say(role: Role | Episode, text: str = "hi") -> int:
    """One call, as any SDK makes it. Returns the status."""
    body = {"model": role.model, "messages": [{"role": "user", "content": text}]}
    headers = {"Authorization": f"Bearer {role.api_key}"}
    return httpx2.post(f"{role.base_url}/chat/completions", json=body, headers=headers).status_code


def play(episode: Episode) -> dict[str, float]:
    for name in ("white", "black", "white"):
        assert say(episode.role(name)) == 200
    return REWARDS


def test_a_role_has_what_an_sdk_needs(swarm: Swarm) -> None:
    with swarm.episode() as episode:
        role = episode.role("white")
        assert (role.name, role.base_url, role.model) == ("white", episode.base_url, episode.model)
        assert role.api_key == f"{episode.api_key}.white"
        assert episode.api_key not in repr(role)
        with pytest.raises(RequestError, match="'a b' is no name of a role"):
            episode.role("a b")
        episode.reward(0)


def test_each_role_gets_its_reward() -> None:
    with FakeServer().serve() as server, Swarm(server.url) as swarm:
        with swarm.episode() as episode:
            episode.reward(play(episode), moves=3)
            assert (episode.recorded_reward, episode.recorded_rewards) == (0.0, REWARDS)
        (seen,) = server.episodes
        assert (seen.status, seen.reward, seen.rewards, seen.metrics) == ("finished", 0.0, REWARDS, {"moves": 3.0})
        assert seen.roles == ["white", "black", "white"]
        assert episode.view is not None
        assert episode.view.rewards == REWARDS


def test_the_last_reward_counts(swarm: Swarm, server: FakeServer) -> None:
    with swarm.episode() as episode:
        episode.reward(REWARDS, moves=1)
        episode.reward(2)
        assert episode.recorded_rewards == {}
    assert (server.episodes[0].reward, server.episodes[0].metrics) == (2.0, {"moves": 1.0})


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"white": "1"}, "rewards.white"),
        ({"white": 1, "black": float("nan")}, "rewards.black"),
        ({}, "reward"),
        ({"a b": 1.0}, "rewards"),
        ({f"r{number}": 1.0 for number in range(65)}, "rewards"),
    ],
)
def test_what_is_no_reward_of_roles(swarm: Swarm, bad: Any, field: str) -> None:
    with swarm.episode() as episode:
        with pytest.raises(RewardError) as caught:
            episode.reward(bad)
        assert caught.value.field == field
        episode.reward(0)


@pytest.mark.parametrize("given", [1.0, {"white": 1.0}, REWARDS | {"red": 0.0}], ids=str)
def test_rewards_of_other_roles_are_refused_and_the_slot_is_given_back(given: Any) -> None:
    with FakeServer().serve() as server, Swarm(server.url) as swarm:
        with pytest.raises(RewardError, match="rewards: "), swarm.episode() as episode:
            play(episode)
            episode.reward(given)
        assert server.episodes[0].status == "aborted"


def test_calls_name_roles_or_they_do_not() -> None:
    with FakeServer().serve() as server, Swarm(server.url) as swarm, swarm.episode() as episode:
        assert say(episode.role("white")) == 200
        assert say(episode) == 400
        episode.reward({"white": 0})


def test_an_agent_returns_them() -> None:
    with FakeServer().serve() as server, Swarm(server.url) as swarm:
        report = swarm.run(play, ["a", "b"], progress=False)
        assert (report.finished, report.reward_mean) == (2, 0.0)
        assert [episode.rewards for episode in server.episodes] == [REWARDS, REWARDS]


def test_an_agent_in_a_process_returns_them(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        "import httpx2\n"
        "def agent(episode):\n"
        "    for name in ('white', 'black'):\n"
        "        role = episode.role(name)\n"
        "        body = {'model': role.model, 'messages': [{'role': 'user', 'content': 'x'}]}\n"
        "        headers = {'Authorization': f'Bearer {role.api_key}'}\n"
        "        httpx2.post(f'{role.base_url}/chat/completions', json=body, headers=headers).raise_for_status()\n"
        "    episode.reward({'white': 1, 'black': -1}, moves=2)\n"
    )
    with FakeServer().serve() as server, Swarm(server.url) as swarm:
        report = swarm.run(f"{tmp_path / 'agent.py'}:agent", ["a"], isolation="process", progress=False)
        assert report.finished == 1, report.records
        assert (server.episodes[0].rewards, server.episodes[0].metrics) == (REWARDS, {"moves": 2.0})


_PROGRAM = """
import json, os, urllib.request
for role in ("white", "black"):
    body = json.dumps({"model": os.environ["AJET_MODEL"], "messages": [{"role": "user", "content": "x"}]}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"] + "." + role}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    urllib.request.urlopen(urllib.request.Request(url, body, headers | {"content-type": "application/json"}))
print(json.dumps({"reward": {"white": 1, "black": -1}}))
"""


def test_a_program_prints_them() -> None:
    with FakeServer().serve() as server, Swarm(server.url) as swarm:
        report = swarm.run(CommandAgent([sys.executable, "-c", _PROGRAM]), ["a"], progress=False)
        assert report.finished == 1, report.records
        assert (server.episodes[0].rewards, server.episodes[0].roles) == (REWARDS, ["white", "black"])


def test_how_a_program_writes_them() -> None:
    assert parse_outcome('{"reward": {"w": 1}, "metrics": {"m": 2}}', "it") == Outcome({"w": 1.0}, {"m": 2.0})
    for text, field in (('{"reward": {"w": "1"}}', "rewards.w"), ('{"reward": {}}', "reward"), ('{"w": 1}', "reward")):
        with pytest.raises(RewardError) as caught:
            parse_outcome(text, "it")
        assert caught.value.field == field


def test_a_team_promises_them() -> None:
    with FakeServer().serve() as a, FakeServer().serve() as b, Swarm(a.url) as one, Swarm(b.url) as two:
        with together(one, two) as (first, second):
            play(first)
            say(second)
            first.reward(REWARDS)
            second.reward(0.5)
        assert (a.episodes[0].rewards, b.episodes[0].reward) == (REWARDS, 0.5)
        with pytest.raises(RewardError, match="no reward for it"), together(one, two) as (first, second):
            say(first)
            play(second)
            first.reward(1)
            second.reward(1)
        assert [server.episodes[1].status for server in (a, b)] == ["aborted", "aborted"]
        with together(two, one) as (first, second):
            say(first)
            first.reward(0.5)
            second.reward(play(second))
        assert (a.episodes[2].status, a.episodes[2].rewards) == ("finished", REWARDS), "the one that follows"
