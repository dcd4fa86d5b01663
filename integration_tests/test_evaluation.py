"""Evaluation of weight versions while training goes on: it disturbs nothing and nothing disturbs it."""

import json
import os
import signal
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest

from ajet_client import Episode, Swarm
from ajet_core.errors import NotFoundError
from live_server import BOOT_S, LiveServer, StartServer, run_cli, say, share_of_digits, wait_for_version

pytestmark = pytest.mark.timeout(300)


def _digits_agent(episode: Episode) -> float:
    return share_of_digits(say(episode, "digits", max_tokens=12))


@contextmanager
def _training(server: LiveServer, concurrency: int = 16) -> Generator[None]:
    """Rollouts without end meanwhile."""
    stop = threading.Event()

    def tasks() -> Iterator[int]:
        number = 0
        while not stop.is_set():
            yield (number := number + 1)

    def work() -> None:
        with server.swarm() as swarm:
            swarm.run(_digits_agent, tasks(), concurrency=concurrency, progress=False, keep_records=0)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


def _evaluate(swarm: Swarm, weights: int | None) -> float:
    report = swarm.run(
        _digits_agent, ["digits", "more"], kind="eval", weights=weights, group_size=12, concurrency=24, progress=False
    )
    assert report.failed == 0
    assert [one.k for one in report.passes(0.5)] == [1, 2, 4, 8]
    assert report.reward_mean is not None
    return report.reward_mean


def test_versions_are_evaluated_while_training_goes_on(start_server: StartServer) -> None:
    server = start_server(
        seed=11,
        batch={"policy": "groups", "size": 4, "group_size": 8},
        engine={"eval_versions": 2},
        checkpoint={"keep": 1},
    )
    server.wait_until_rolling()
    with _training(server, 32), server.swarm() as swarm:
        wait_for_version(swarm, 12)  # how much six updates teach hangs on which rollouts came first
        before = swarm.status().step
        with _newest(swarm) as held:
            trained, first = _evaluate(swarm, held.weight_version), _evaluate(swarm, 0)
            wait_for_version(swarm, held.weight_version + 2)  # its checkpoint would be gone by now
            assert say(held, "digits", max_tokens=4)
            held.reward(1.0)
        assert trained > first + 0.1
        assert swarm.status().step > before
        with pytest.raises(NotFoundError, match="version 999 is not there; there are 0, "):
            _evaluate(swarm, 999)
    version = held.weight_version
    assert server.rows(
        "SELECT DISTINCT e.weights, c.weight_version FROM episodes e JOIN calls c ON c.episode_id = e.id"
        " WHERE e.kind = 'eval' ORDER BY 1"
    ) == [(0, 0), (version, version)]
    assert server.rows("SELECT count(*) FROM episodes WHERE kind = 'eval' AND batch_id IS NOT NULL") == [(0,)]
    assert [one["weight_version"] for one in _passk(server)] == [0, version]
    checked = run_cli("ledger", "check", str(server.data_dir))
    assert checked.returncode == 0, checked.stdout


@contextmanager
def _newest(swarm: Swarm) -> Generator[Episode]:
    """An evaluation of a version that was the newest a moment ago; another one if it is gone already."""
    while True:
        try:
            with swarm.episode("held", kind="eval", weights=swarm.status().weight_version) as episode:
                yield episode
                return
        except NotFoundError:
            continue


def _passk(server: LiveServer) -> list[dict[str, object]]:
    answer = run_cli("episodes", "passk", str(server.data_dir), "--json")
    assert answer.returncode == 0, answer.stderr
    found: list[dict[str, object]] = json.loads(answer.stdout)["weights"]
    return found


def test_a_flood_of_evaluations_stops_no_update(start_server: StartServer) -> None:
    server = start_server(
        batch={"policy": "groups", "size": 1, "group_size": 4},
        limits={"max_open_episodes": 24, "max_completion_tokens": 200, "drain_timeout_s": 100},
        engine={"max_batch_size": 8},
    )
    server.wait_until_rolling()
    stop = threading.Event()

    def flood(weights: int | None) -> None:
        def tasks() -> Iterator[str]:
            while not stop.is_set():
                yield "x"

        with server.swarm() as swarm:
            swarm.run(
                lambda episode: float(len(say(episode, "x", max_tokens=200))), tasks(), kind="eval", weights=weights,
                concurrency=12, progress=False, keep_records=0,
            )  # fmt: skip

    floods = [threading.Thread(target=flood, args=(weights,)) for weights in (None, 0)]
    for thread in floods:
        thread.start()
    try:
        with _training(server, 8), server.swarm() as swarm:
            wait_for_version(swarm, 5)
    finally:
        stop.set()
        for thread in floods:
            thread.join(100)
    assert not any(thread.is_alive() for thread in floods)
    assert server.rows("SELECT count(*) FROM episodes WHERE kind = 'eval' AND status = 'finished'")[0][0] > 0


def test_a_named_version_survives_its_worker(start_server: StartServer) -> None:
    server = start_server(batch={"policy": "groups", "size": 1, "group_size": 4}, checkpoint={"keep": 1})
    server.wait_until_rolling()
    with server.swarm() as swarm:
        swarm.run(_digits_agent, ["t"], progress=False)
        wait_for_version(swarm, 1)
        with swarm.episode("held", kind="eval", weights=1) as episode:
            first = say(episode, "a", max_tokens=4)
            for version in (2, 3):
                swarm.run(_digits_agent, ["t"], progress=False)
                wait_for_version(swarm, version)
            pid = swarm.status().worker_pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            assert first
            assert say(episode, "b", max_tokens=4, timeout_s=BOOT_S)
            episode.reward(1)
    rows = server.rows("SELECT DISTINCT weight_version FROM calls WHERE episode_id = ?", episode.id)
    assert rows == [(1,)]
