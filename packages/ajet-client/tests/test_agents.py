import pytest

from ajet_client import CommandAgent, Swarm
from ajet_client.testing import FakeServer
from ajet_core.errors import RequestError


def agent(episode: object) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("what", "options", "field"),
    [
        (agent, {"isolation": "container"}, "isolation"),
        (agent, {"timeout": 1.0}, "timeout"),
        (agent, {"watch": True}, "watch"),
        (agent, {"isolation": "process", "watch": True}, "watch"),
        (agent, {"isolation": "process", "timeout": 0.0}, "timeout"),
        (agent, {"isolation": "process", "timeout": float("nan")}, "timeout"),
        (lambda episode: 1.0, {"isolation": "process"}, "agent"),
        ("/no/such.py", {}, "agent"),
        ("/no/such.py", {"isolation": "process"}, "agent"),
        (__file__, {"timeout": 1.0}, "timeout"),
        (CommandAgent("true"), {"isolation": "process"}, "isolation"),
        (CommandAgent("true"), {"timeout": 1.0}, "timeout"),
        (CommandAgent("true"), {"watch": True}, "watch"),
    ],
)
def test_what_would_have_no_effect_is_refused(
    swarm: Swarm, server: FakeServer, what: object, options: dict[str, object], field: str
) -> None:
    with pytest.raises(RequestError, match=field) as caught:
        swarm.run(what, ["a"], progress=False, **options)  # type: ignore[arg-type]
    assert caught.value.field == field
    assert server.requests == []


def test_an_async_function_runs_in_a_thread_too(swarm: Swarm, server: FakeServer) -> None:
    async def agent(episode: object) -> float:
        return 0.5

    swarm.run(agent, ["a"], progress=False)
    assert server.rewards == [0.5]
