"""SIGKILL at any moment: calls in flight are answered, nothing acknowledged is lost, nothing is trained twice."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from openai import OpenAI

from ajet_client import Episode
from live_server import BOOT_S, StartServer, last_json

_CHAOS = Path(__file__).parents[1] / "benchmarks" / "chaos.py"


@pytest.mark.timeout(280)
def test_kills_at_random_points_cost_nothing() -> None:
    points = ["--points", "4", "--updates", "10", "--seed", "5"]
    done = subprocess.run(
        [sys.executable, str(_CHAOS), *points, "--json"], capture_output=True, text=True, check=False, timeout=270
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = last_json(done.stdout)
    assert (result["points"], result["clean"]) == (4, 4)
    assert result["found"] == result["acknowledged"] > 0
    assert (result["lost"], result["trained_twice"]) == (0, 0)
    assert result["trained_once"] == 8 * result["updates"]
    assert result["versions_monotonic"] is True
    assert result["retrained_identical"] is True, "each batch was trained once, to the last bit"
    assert sum(sum(row[name] for name in ("api", "worker", "both", "client")) for row in result["phases"]) == 4


@pytest.mark.timeout(200)
def test_a_call_in_flight_is_answered_by_the_next_server(start_server: StartServer) -> None:
    server = start_server()
    server.wait_until_rolling()
    port = int(server.url.rsplit(":", 1)[1])
    with server.swarm() as swarm, swarm.episode(task="long", kind="eval") as episode, ThreadPoolExecutor(1) as thread:
        worker = swarm.status().worker_pid
        assert worker is not None
        os.kill(worker, signal.SIGSTOP)  # so that the call is in flight for as long as it takes
        call = thread.submit(_retries_of_a_call, episode)
        _wait_until(lambda: swarm.status().requests_running > 0, "the call reaches the worker")
        server.kill()
        _wait_until(lambda: not _runs(worker), "the worker ends with its server, though it was stopped")
        server.start(port)
        assert call.result(BOOT_S) > 0
        episode.reward(1.0)
    assert server.rows("SELECT count(*), max(status), max(reward) FROM calls JOIN episodes e ON e.id = episode_id") == [
        (1, "finished", 1.0)
    ]


def _retries_of_a_call(episode: Episode) -> int:
    with OpenAI(base_url=episode.base_url, api_key=episode.api_key, max_retries=30) as sdk:
        answer = sdk.chat.completions.with_raw_response.create(
            model=episode.model, messages=[{"role": "user", "content": "hello"}], max_tokens=8
        )
    return answer.retries_taken


def _wait_until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + BOOT_S
    while not true():
        assert time.monotonic() < deadline, f"it never happened that {what}"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    """Whether a process is there and no zombie that nobody has asked for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
