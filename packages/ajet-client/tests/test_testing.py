import openai
import pytest

from ajet_client import Swarm
from ajet_client.episode import Episode
from ajet_client.testing import FakeClock, FakeServer
from ajet_core.errors import KeyRefusedError, NotFoundError


def ask(episode: Episode) -> str | None:
    with openai.OpenAI(base_url=episode.base_url, api_key=episode.api_key, max_retries=0) as client:
        answer = client.chat.completions.create(
            model=episode.model, messages=[{"role": "user", "content": str(episode.task)}]
        )
    return answer.choices[0].message.content


def test_an_agent_of_the_openai_sdk() -> None:
    def reply(messages: list[dict[str, object]]) -> str:
        return f"you said {messages[-1]['content']}"

    def agent(episode: Episode) -> float:
        return float(ask(episode) == f"you said {episode.task}")

    with FakeServer(reply=reply).serve() as server, Swarm(server.url) as swarm:
        report = swarm.run(agent, ["a", "b"], group_size=2, progress=False)
    assert report.reward_mean == 1.0
    assert server.rewards == [1.0] * 4
    assert all(len(episode.calls) == 1 for episode in server.episodes)


def test_the_key_of_a_closed_episode_is_refused() -> None:
    with FakeServer().serve() as server, Swarm(server.url) as swarm:
        with swarm.episode("hello") as episode:
            assert ask(episode) == "ok"
            episode.reward(1)
        with pytest.raises(openai.AuthenticationError):
            ask(episode)


def test_what_the_fake_cannot_do_it_says() -> None:
    with FakeServer().serve() as server, Swarm(server.url) as swarm, swarm.episode("hello") as episode:
        episode.reward(1)
        with openai.OpenAI(base_url=episode.base_url, api_key=episode.api_key, max_retries=0) as client:
            with pytest.raises(openai.BadRequestError, match="does not stream"):
                client.chat.completions.create(model="m", messages=[], stream=True)
            with pytest.raises(openai.NotFoundError):
                client.models.list()


def test_the_agents_key_cannot_set_the_reward(server: FakeServer, swarm: Swarm) -> None:
    with swarm.episode() as episode:
        answer = server.answer("POST", f"/api/episodes/{episode.id}/finish", episode.api_key, b'{"reward": 1}')
        assert answer is not None
        assert answer.status == 403
        answer = server.answer("POST", f"/api/episodes/{episode.id}/finish", "wrong", b'{"reward": 1}')
        assert answer is not None
        assert answer.status == KeyRefusedError.status
        episode.reward(0)


def test_an_unknown_episode_is_not_found(swarm: Swarm) -> None:
    with pytest.raises(NotFoundError):
        swarm.view("ep_none")


def test_waiting_for_requests_has_a_deadline(server: FakeServer) -> None:
    assert not server.wait_for("open", 1, timeout_s=0.0)


def test_the_fake_clock() -> None:
    clock = FakeClock()
    clock.sleep(2.0)
    assert (clock.now(), clock.sleeps, clock.jitter()) == (2.0, [2.0], 0.5)
