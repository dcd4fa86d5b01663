"""Two servers, one client: both learn, and whatever is killed, episodes are finished on both or on none."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ajet_client import Task, Team, resolve, together
from live_server import LiveServer, StartServer, last_json, run_cli, say, share_of_digits, wait_for_version

pytestmark = pytest.mark.timeout(300)
_ROUNDS = 10
"""Some runs learn half as fast as most: which rollouts come first is luck."""
_BATCH = {"policy": "groups", "size": 4, "group_size": 8}


def _plan_and_execute(team: Team) -> tuple[float, float]:
    planner, executor = team
    plan = say(planner, "digits", max_tokens=12)
    result = say(executor, f"digits {plan[:4]}", max_tokens=12)
    return share_of_digits(plan), share_of_digits(result)


def test_planner_and_executor_both_learn(start_server: StartServer) -> None:
    servers = [start_server(batch=_BATCH, seed=seed) for seed in (11, 12)]
    for server in servers:
        server.wait_until_rolling()
    means: list[list[float]] = []
    with servers[0].swarm() as a, servers[1].swarm() as b:
        for round_number in range(_ROUNDS):
            tasks = [Task(data={"round": round_number, "task": number}) for number in range(4)]
            report = together(a, b).run(_plan_and_execute, tasks, group_size=8, concurrency=32, progress=False)
            assert (report.finished, report.failed) == (32, 0)
            means.append([report.metric_means["0.reward"], report.metric_means["1.reward"]])
        for swarm in (a, b):
            wait_for_version(swarm, _ROUNDS)
    for learned in zip(*means, strict=True):
        assert sum(learned[-2:]) / 2 > sum(learned[:2]) / 2 + 0.1, means
    query = "SELECT group_id, count(*) FROM episodes WHERE status = 'finished' GROUP BY group_id ORDER BY group_id"
    assert servers[0].rows(query) == servers[1].rows(query), "the groups are in line"


_DYING_CLIENT = """
import os, signal, sys
from ajet_client import Swarm, together
from ajet_client.api import Api
from ajet_client.episode import EpisodeBase
from live_server import say

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

first, second, moment = sys.argv[1:]
setattr(*{"before": (EpisodeBase, "commit"), "between": (Api, "decide")}[moment], die)
with Swarm(first) as a, Swarm(second) as b, together(a, b, task="t") as team:
    for episode in team:
        say(episode, "hello")
    team.reward([0.25, 0.75])
"""


def _die(servers: list[LiveServer], moment: str) -> None:
    """A client that kills itself when it has prepared all: before it decides, or before it tells of it."""
    done = subprocess.run(
        [sys.executable, "-c", _DYING_CLIENT, *(server.url for server in servers), moment],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        check=False,
        timeout=100,
    )
    assert done.returncode == -signal.SIGKILL


def _pair(start_server: StartServer) -> list[LiveServer]:
    limits = {"max_completion_tokens": 32, "lease_s": 2.0, "drain_timeout_s": 5}
    servers = [start_server(batch={"policy": "groups", "size": 1, "group_size": 2}, limits=limits) for _ in range(2)]
    for server in servers:
        server.wait_until_rolling()
    return servers


def _closed(server: LiveServer) -> list[tuple[str, float | None]]:
    return [(status, reward) for status, reward in server.rows("SELECT status, reward FROM episodes")]


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


def test_a_client_killed_between_the_finishes_leaves_both_consistent(start_server: StartServer) -> None:
    servers = _pair(start_server)
    _die(servers, "between")
    assert [_closed(server) for server in servers] == [[("finished", 0.25)], [("open", None)]]
    with servers[0].swarm() as a, servers[1].swarm() as b:
        _until(lambda: bool(b.status().pool.in_doubt))
        assert f"which {servers[0].url} decides" in b.status().why
        assert not a.status().pool.in_doubt
    told = last_json(run_cli("episodes", "resolve", servers[0].url, servers[1].url, "--json").stdout)
    assert (len(told["committed"]), told["aborted"], told["undecided"]) == (1, [], [])
    assert [_closed(server) for server in servers] == [[("finished", 0.25)], [("finished", 0.75)]]
    with servers[0].swarm() as a, servers[1].swarm() as b:
        assert "in doubt" not in b.status().why
        # One more each completes the groups, and both are trained.
        with together(a, b, task="t") as team:
            for episode in team:
                say(episode, "again")
            team.reward([1, 0])
        for swarm in (a, b):
            wait_for_version(swarm, 1)
    for server in servers:
        assert server.rows("SELECT count(*) FROM episodes WHERE batch_id IS NOT NULL") == [(2,)]


def test_a_client_killed_before_the_decision_finishes_nothing(start_server: StartServer) -> None:
    servers = _pair(start_server)
    _die(servers, "before")
    with servers[0].swarm() as a, servers[1].swarm() as b:
        _until(lambda: bool(resolve(a, b).aborted))
    assert [_closed(server) for server in servers] == [[("expired", None)], [("aborted", None)]]


def test_both_servers_are_killed_too(start_server: StartServer) -> None:
    servers = _pair(start_server)
    _die(servers, "between")
    for server in servers:
        server.kill()
        server.start()
        server.wait_until_rolling()
    with servers[0].swarm() as a, servers[1].swarm() as b:
        assert len(resolve(b, a).committed) == 1
    assert [_closed(server) for server in servers] == [[("finished", 0.25)], [("finished", 0.75)]]
