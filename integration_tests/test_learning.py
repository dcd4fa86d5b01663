"""The whole loop on a micro model: it learns, it goes on without its clients, and it survives kill -9."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest

from ajet_client import Episode, Swarm, Task
from ajet_core.errors import UnavailableError
from live_server import BOOT_S, LiveServer, StartServer, say, share_of_digits, wait_for_version

pytestmark = pytest.mark.timeout(300)
ROUNDS = 10
"""Some runs learn half as fast as most: which rollouts come first is luck."""


def _digits_agent(episode: Episode) -> float:
    return share_of_digits(say(episode, "digits", max_tokens=12))


def test_the_reward_rises(start_server: StartServer) -> None:
    server = start_server(batch={"policy": "groups", "size": 4, "group_size": 8}, seed=11)
    server.wait_until_rolling()
    means: list[float] = []
    with server.swarm() as swarm:
        for round_number in range(ROUNDS):
            tasks = [Task(data={"round": round_number, "task": number}) for number in range(4)]
            report = swarm.run(_digits_agent, tasks, group_size=8, concurrency=32, progress=False)
            assert report.failed == 0
            assert report.reward_mean is not None
            means.append(report.reward_mean)
        wait_for_version(swarm, ROUNDS)
        status = swarm.status()
    assert status.step == ROUNDS
    assert sum(means[-2:]) / 2 > sum(means[:2]) / 2 + 0.15, means
    for (text,) in server.rows("SELECT report FROM batches WHERE status = 'done'"):
        assert '"skipped":false' in text
    assert server.rows("SELECT count(*) FROM batches WHERE status = 'planned'") == [(0,)]


_HANGING_CLIENT = """
import sys
from ajet_client import Swarm
from live_server import say
with Swarm(sys.argv[1]) as swarm, swarm.episode(task="doomed") as episode:
    say(episode, "hello")
    print(episode.id, flush=True)
    sys.stdin.read()
"""


def test_training_goes_on_when_a_client_is_killed_in_mid_episode(start_server: StartServer) -> None:
    server = start_server(
        batch={"policy": "groups", "size": 1, "group_size": 4},
        limits={"max_completion_tokens": 32, "lease_s": 2.0, "drain_timeout_s": 60},
    )
    server.wait_until_rolling()
    with _hanging_client(server) as doomed, server.swarm() as swarm:
        doomed.kill()
        doomed.wait()
        # Its task is wanted by others too: they fill the group, and the slot that it held is refilled.
        report = swarm.run(lambda episode: float(len(say(episode, "x"))), ["doomed"] * 4, group_size=1, progress=False)
        assert report.finished == 4
        wait_for_version(swarm, 1)
    assert server.rows("SELECT status, count(*) FROM episodes GROUP BY status ORDER BY status") == [
        ("expired", 1),
        ("finished", 4),
    ]


@contextmanager
def _hanging_client(server: LiveServer) -> Generator[subprocess.Popen[str]]:
    """A client process that has made a call and will never finish its episode."""
    with subprocess.Popen(
        [sys.executable, "-c", _HANGING_CLIENT, server.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ep_")
        yield process


def test_a_client_that_is_started_again_trains_on_at_once(start_server: StartServer) -> None:
    server = start_server(
        batch={"policy": "groups", "size": 2, "group_size": 4},
        limits={"max_completion_tokens": 32, "lease_s": 600, "drain_timeout_s": 60},
    )
    server.wait_until_rolling()

    def broken(episode: Episode) -> float:
        say(episode, "x")
        if random.random() < 0.5:  # a mistake in the agent, found after some rollouts of each group
            raise ValueError("the agent has a mistake")
        return 1.0

    with server.swarm() as swarm:
        swarm.run(broken, ["a", "b"], group_size=4, concurrency=8, attempts=1, progress=False)
        # Edited and started again: nobody waits for the groups that the first try left behind.
        report = swarm.run(lambda episode: float(len(say(episode, "x"))), ["a", "b"], group_size=4, progress=False)
        assert report.finished == 8
        wait_for_version(swarm, 1)


def test_kill_9_of_the_server_loses_nothing_that_was_acknowledged(start_server: StartServer) -> None:
    server = start_server(batch={"policy": "groups", "size": 1, "group_size": 4})
    server.wait_until_rolling()
    with server.swarm() as swarm:
        swarm.run(lambda episode: float(len(say(episode, "a"))), ["first"] * 4, group_size=1, progress=False)
        wait_for_version(swarm, 1)
        report = swarm.run(lambda episode: float(len(say(episode, "b"))), ["second"] * 3, group_size=1, progress=False)
    with server.http() as http:
        survivor = http.post("/api/episodes", json={"request_id": "survivor", "task": "second"}).json()
    _chat(server, survivor, "before the kill")
    server.kill()

    server.start()
    server.wait_until_rolling()
    with server.swarm() as swarm:
        status = swarm.status()
        assert (status.step, status.weight_version) == (1, 1)
        assert (status.pool.finished_episodes, status.pool.open_episodes) == (3, 1)
        # The keys outlive the server: the episode that was open goes on, at the new address, and completes its group.
        _chat(server, survivor, "after the kill")
        _finish(server, survivor, reward=3.0)
        wait_for_version(swarm, 2)
    batch = server.rows("SELECT batch_id FROM episodes WHERE id = ?", survivor["episode_id"])
    assert batch[0][0] is not None
    trained = {row[0] for row in server.rows("SELECT id FROM episodes WHERE batch_id = ?", batch[0][0])}
    assert trained == {survivor["episode_id"], *(record.episode_id for record in report.records)}
    assert server.rows("SELECT count(*) FROM calls WHERE episode_id = ?", survivor["episode_id"]) == [(2,)]


def _chat(server: LiveServer, grant: dict[str, str], text: str) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=grant["api_key"]) as client:
        client.chat.completions.create(model=grant["model"], messages=[{"role": "user", "content": text}], max_tokens=4)


def _finish(server: LiveServer, grant: dict[str, str], reward: float) -> None:
    with server.http() as http:
        answer = http.post(
            f"/api/episodes/{grant['episode_id']}/finish",
            json={"reward": reward},
            headers={"Authorization": f"Bearer {grant['control_key']}"},
        )
    assert answer.status_code == 200, answer.text


def test_kill_9_of_the_worker_is_repaired(start_server: StartServer) -> None:
    server = start_server(batch={"policy": "groups", "size": 1, "group_size": 4})
    server.wait_until_rolling()
    with server.swarm() as swarm:
        pid = swarm.status().worker_pid
        assert pid is not None
        with swarm.episode(task="t", kind="eval") as episode:
            os.kill(pid, signal.SIGKILL)
            assert say(episode, "the call waits for the next worker", max_tokens=4, timeout_s=BOOT_S)
            episode.reward(1)
        assert swarm.status().worker_pid != pid


def test_without_a_server_the_client_says_so_and_gives_up_in_time() -> None:
    with Swarm("http://127.0.0.1:9", timeout=0.5) as swarm, pytest.raises(UnavailableError, match=r"127\.0\.0\.1:9"):
        swarm.status()
