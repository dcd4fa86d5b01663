"""Every batch policy, C1 to C5, and a condition in place of one, drives real updates of a real model."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from ajet_client import Episode, Swarm, Task
from ajet_core.events import StepReport
from live_server import LiveServer, StartServer, say, share_of_digits, wait_for_version

pytestmark = pytest.mark.timeout(200)

_UPDATES = 2
_GROUP_SIZE = 4
_ASKED = ({"policy": "any_client"}, {"policy": "all_clients"})


def _agent(episode: Episode, *, same: bool = False) -> float:
    answer = say(episode, str(episode.task), max_tokens=12)
    return 1.0 if same else share_of_digits(answer) + 0.01 * len(answer)


def _group(swarm: Swarm, name: str, *, same: bool = False) -> set[str]:
    """A whole group of one task; returns its episodes."""
    agent = partial(_agent, same=same)
    report = swarm.run(agent, [Task(name)], group_size=_GROUP_SIZE, concurrency=_GROUP_SIZE, progress=False)
    assert report.failed == 0
    return {record.episode_id for record in report.records}


@pytest.mark.parametrize(
    "batch",
    [
        {"policy": "episodes", "size": 2 * _GROUP_SIZE},
        {"policy": "groups", "size": 2},
        {"policy": "informative_groups", "size": 2},
        *_ASKED,
        {"policy": "groups", "size": 2, "when": "groups >= 2 and ready_clients >= 1 or waited > 1h"},
    ],
    ids=lambda batch: batch.get("when", batch["policy"]),
)
def test_a_policy_drives_a_training_run(start_server: StartServer, batch: dict[str, Any]) -> None:
    server = start_server(batch={"group_size": _GROUP_SIZE, **batch})
    server.wait_until_rolling()
    everybody, informative = batch["policy"] == "all_clients", batch["policy"] == "informative_groups"
    asks = batch in _ASKED or "when" in batch
    expected: list[set[str]] = []
    with Swarm(server.url, client_id="math") as math, Swarm(server.url, client_id="tools") as tools:
        for step in range(_UPDATES):
            if informative:  # its rewards are equal: it is set aside, and another one takes its place
                _group(math, f"dull {step}", same=True)
            with ThreadPoolExecutor(2) as pool:
                groups = list(pool.map(_group, (math, tools), (f"sum {step}", f"search {step}")))
            assert math.status().step == step or not asks, "nobody has agreed yet"
            if asks:
                math.ready()
                if everybody:
                    assert tools.status().pool.clients_awaited == ["tools"]
                    tools.ready()
            wait_for_version(math, step + 1)
            expected.append(groups[0] | groups[1])
    _assert_trained(server, expected)


def _assert_trained(server: LiveServer, expected: list[set[str]]) -> None:
    """Each update took just these episodes, and moved the weights."""
    done = server.rows("SELECT id, report FROM batches WHERE status = 'done' ORDER BY step")
    assert len(done) == len(expected)
    for (batch_id, report), episodes in zip(done, expected, strict=True):
        taken = {name for (name,) in server.rows("SELECT id FROM episodes WHERE batch_id = ?", batch_id)}
        assert taken == episodes
        step = StepReport.model_validate_json(report)
        assert not step.skipped
        assert step.grad_norm > 0
