"""Rolling goes on during updates of a real micro model: it learns, nothing too old is trained, every token says its
version."""

import json
import os
import random
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from ajet_client import Episode, Swarm, Task
from ajet_core.errors import AjetError
from ajet_core.events import StepReport
from live_server import BOOT_S, LiveServer, StartServer, last_json, run_cli, say, share_of_digits, wait_for_version

pytestmark = pytest.mark.timeout(300)

STEPS = 10
MAX_STALENESS = 2


def _start(start_server: StartServer, during_update: str) -> LiveServer:
    server = start_server(
        batch={"policy": "groups", "size": 4, "group_size": 8, "max_staleness": MAX_STALENESS},
        engine={"during_update": during_update},
        limits={"max_completion_tokens": 400, "lease_s": 60, "drain_timeout_s": 60},
        seed=11,
    )
    server.wait_until_rolling()
    return server


def _uneven_agent(episode: Episode) -> float:
    """Some calls are five times as long as others, so some are in flight whenever weights change."""
    length = random.choice([12] * 7 + [60])
    return share_of_digits(say(episode, "digits", max_tokens=length))


@contextmanager
def _long_calls(swarm: Swarm) -> Generator[None]:
    """Evaluations with calls so long that one is in flight at every change of weights."""
    over = threading.Event()

    def evaluate() -> None:
        while not over.is_set():
            with swarm.episode(task="exam", kind="eval") as episode:
                say(episode, "a long one", max_tokens=400, timeout_s=BOOT_S)
                episode.reward(1.0)

    threads = [threading.Thread(target=evaluate) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _reports(server: LiveServer) -> list[StepReport]:
    rows = server.rows("SELECT report FROM batches WHERE status = 'done' ORDER BY step")
    return [StepReport.model_validate_json(text) for (text,) in rows]


def _train(server: LiveServer, steps: int) -> None:
    with server.swarm() as swarm, _long_calls(swarm):
        rounds = 0
        while swarm.status().step < steps:
            tasks = [Task(data={"round": rounds, "task": number}) for number in range(4)]
            report = swarm.run(_uneven_agent, tasks, group_size=8, concurrency=32, progress=False)
            assert report.failed == 0
            rounds += 1
        wait_for_version(swarm, steps)


def _assert_nothing_too_old_was_trained(server: LiveServer) -> None:
    trained = server.rows(
        "SELECT b.step, c.weight_version FROM calls c JOIN episodes e ON e.id = c.episode_id"
        " JOIN batches b ON b.id = e.batch_id WHERE b.status = 'done'"
    )
    assert trained
    assert all(0 <= step - 1 - version <= MAX_STALENESS for step, version in trained)
    assert server.rows("SELECT count(*) FROM batches WHERE status = 'planned'") == [(0,)]


@pytest.mark.parametrize("during_update", ["finish", "continue"])
def test_it_learns_while_episodes_go_on(start_server: StartServer, during_update: str) -> None:
    server = _start(start_server, during_update)
    _train(server, STEPS)
    reports = _reports(server)
    means = [report.reward_mean for report in reports]
    assert sum(means[-3:]) / 3 > sum(means[:3]) / 3 + 0.05, means
    assert not any(report.skipped for report in reports)
    assert sum(report.overlap_tokens for report in reports) > 0
    assert all(report.staleness_max <= MAX_STALENESS for report in reports)
    assert any(report.stale_fraction > 0 for report in reports)
    _assert_nothing_too_old_was_trained(server)
    mixed = [json.loads(spans) for (spans,) in server.rows("SELECT version_spans FROM calls WHERE version_spans <> ''")]
    states = {row[0] for row in server.rows("SELECT json_extract(data, '$.state') FROM events")}
    assert "draining" not in states
    if during_update == "finish":
        assert mixed == []
    else:
        assert mixed
        assert all(versions == sorted(set(versions)) for versions in ([v for _, v in spans] for spans in mixed))
        with server.swarm() as swarm:
            assert swarm.status().requests_continued >= len(mixed)
    assert last_json(run_cli("ledger", "check", str(server.data_dir), "--json").stdout)["problems"] == []


def test_kill_9_of_the_worker_in_the_middle_of_an_overlapped_update(start_server: StartServer) -> None:
    server = _start(start_server, "continue")
    with server.swarm() as swarm:
        killer = threading.Thread(target=_kill_in_an_update, args=(swarm,))
        killer.start()
        _train(server, 3)
        killer.join()
        assert server.rows("SELECT count(*) FROM events WHERE type = 'worker_restarted'") == [(1,)]
    steps = [step for (step,) in server.rows("SELECT step FROM batches WHERE status = 'done' ORDER BY step")]
    assert steps == list(range(1, len(steps) + 1))
    _assert_nothing_too_old_was_trained(server)
    assert last_json(run_cli("ledger", "check", str(server.data_dir), "--json").stdout)["problems"] == []


def _kill_in_an_update(swarm: Swarm) -> None:
    """Kills the worker at the first sign of an update's progress."""
    try:
        for event in swarm.events():
            if event.type == "update_progress" and event.stage == "update":
                pid = swarm.status().worker_pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                return
    except AjetError as error:  # the server ended, and with it the events: the test that waits says why
        raise AssertionError(str(error)) from error
