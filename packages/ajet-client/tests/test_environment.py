import json

import pytest

from ajet_client import Swarm
from ajet_client.environment import agent_environment


def test_sdks_find_the_episode_and_no_agent_finds_the_token(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_TOKEN", "secret")
    monkeypatch.setenv("PATH", "/bin")
    with swarm.episode({"a": 1}, kind="eval") as episode:
        found = agent_environment(episode)
        episode.reward(1.0)
    assert found["PATH"] == "/bin"
    assert found["OPENAI_BASE_URL"] == episode.base_url == f"{found['ANTHROPIC_BASE_URL']}/v1"
    assert found["OPENAI_API_KEY"] == found["ANTHROPIC_API_KEY"] == episode.api_key
    assert (found["AJET_MODEL"], found["AJET_EPISODE_ID"]) == (episode.model, episode.id)
    assert json.loads(found["AJET_TASK"]) == {"a": 1}
    assert "secret" not in found.values()
    assert episode.grant.control_key not in "".join(found.values())


def test_a_large_task_is_no_variable(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_TASK", "of somebody else")
    with swarm.episode("x" * 64_000, kind="eval") as episode:
        assert "AJET_TASK" not in agent_environment(episode)
        episode.reward(1.0)
