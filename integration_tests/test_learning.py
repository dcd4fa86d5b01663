"""The whole loop on a micro model: it learns, it goes on without its clients, and it survives kill -9."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import openai
import pytest
from ajet_client import Episode, Swarm
from ajet_core.errors import UnavailableError
from conftest import StartServer
from live_server import BOOT_S, LiveServer, say, share_of_digits

pytestmark = pytest.mark.timeout(300)


def _wait_for_version(swarm: Swarm, version: int) -> None:
    for event in swarm.events():
        if event.type == "weights_synced" and event.weight_version >= version:
            return


def _digits_agent(seed: int):  # noqa: ANN202 - an agent
    def agent(episode: Episode) -> float:
        return share_of_digits(say(episode, "digits", max_tokens=12))

    return agent


def test_the_reward_rises(start_server: StartServer) -> None:
    server = start_server(batch={"policy": "groups", "size": 4, "group_size": 8}, seed=11)
    server.wait_until_rolling()
    means: list[float] = []
    with server.swarm() as swarm:
        for round_number in range(7):
            tasks = [{"round": round_number, "task": number} for number in range(4)]
            report = swarm.run(_digits_agent(round_number), tasks, group_size=8, concurrency=32, progress=False)
            assert report.failed == 0
            assert report.reward_mean is not None
            means.append(report.reward_mean)
        _wait_for_version(swarm, 7)
        status = swarm.status()
    assert status.step == 7
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
    doomed = _start_hanging_client(server)
    with server.swarm() as swarm:
        doomed.send_signal(signal.SIGKILL)
        doomed.wait()
        # Its task is wanted by others too: they fill the group, and the slot that it held is refilled.
        report = swarm.run(lambda episode: float(len(say(episode, "x"))), ["doomed"] * 4, progress=False)
        assert report.finished == 4
        _wait_for_version(swarm, 1)
    assert server.rows("SELECT status, count(*) FROM episodes GROUP BY status ORDER BY status") == [
        ("expired", 1),
        ("finished", 4),
    ]


def _start_hanging_client(server: LiveServer) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HANGING_CLIENT, server.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ep_")
    return process


def test_kill_9_of_the_server_loses_nothing_that_was_acknowledged(start_server: StartServer) -> None:
    server = start_server(batch={"policy": "groups", "size": 1, "group_size": 4})
    server.wait_until_rolling()
    with server.swarm() as swarm:
        swarm.run(lambda episode: float(len(say(episode, "a"))), ["first"], group_size=4, progress=False)
        _wait_for_version(swarm, 1)
        finished = []
        for number in range(3):
            with swarm.episode(task="second") as episode:
                say(episode, "b")
                episode.reward(number)
            finished.append(episode.id)
        survivor = swarm.episode(task="second")
        still_open = survivor.__enter__()
        say(still_open, "before the kill")
        server.kill()

    server.start()
    server.wait_until_rolling()
    with server.swarm() as swarm:
        status = swarm.status()
        assert (status.step, status.weight_version) == (1, 1)
        assert status.pool.finished_episodes == 3
        assert status.pool.open_episodes == 1
        # The agent's key outlives the server: the episode that was open goes on, at the new address.
        assert server.rows("SELECT count(*) FROM calls WHERE episode_id = ?", still_open.id) == [(1,)]
        _call_with_key(server, still_open)
        _finish_with_control_key(server, still_open, 3.0)
        _wait_for_version(swarm, 2)
    trained = server.rows("SELECT id, batch_id IS NOT NULL FROM episodes WHERE task_id = (SELECT task_id FROM episodes WHERE id = ?)", still_open.id)
    assert {row[0] for row in trained} == {*finished, still_open.id}
    assert all(row[1] for row in trained)


def _call_with_key(server: LiveServer, episode: Episode) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=episode.api_key) as client:
        client.chat.completions.create(
            model=episode.model, messages=[{"role": "user", "content": "after the kill"}], max_tokens=4
        )


def _finish_with_control_key(server: LiveServer, episode: Episode, reward: float) -> None:
    with server.http() as http:
        answer = http.post(
            f"/api/episodes/{episode.id}/finish",
            json={"reward": reward},
            headers={"Authorization": f"Bearer {episode._grant.control_key}"},  # noqa: SLF001 - a client that survived knows it
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
            assert say(episode, "the call waits for the next worker", max_tokens=4, timeout=BOOT_S)
            episode.reward(1)
        assert swarm.status().worker_pid != pid


def test_without_a_server_the_client_says_so_and_gives_up_in_time() -> None:
    with Swarm("http://127.0.0.1:9", timeout=0.5) as swarm, pytest.raises(UnavailableError, match="127.0.0.1:9"):
        swarm.status()
