"""Several clients train one model on tasks of several sources, and none starves another."""

import threading
from collections.abc import Iterator

import pytest

from ajet_client import Episode
from ajet_core.errors import UnavailableError
from live_server import LiveServer, StartServer, say, wait_for_version

pytestmark = pytest.mark.timeout(300)


def _agent(episode: Episode) -> float:
    return float(len(say(episode, "x")))


def test_a_fast_client_and_a_slow_one_share_every_update(start_server: StartServer) -> None:
    server = start_server(
        batch={"policy": "groups", "size": 3, "group_size": 4, "sources": {"math": 0.6, "tools": 0.4}}
    )
    server.wait_until_rolling()
    stop = threading.Event()
    clients = [
        threading.Thread(target=_rollouts, args=(server, "math", 32, stop)),
        threading.Thread(target=_rollouts, args=(server, "tools", 1, stop)),  # one episode at a time
    ]
    for client in clients:
        client.start()
    try:
        with server.swarm() as swarm:
            wait_for_version(swarm, 4)
    finally:
        stop.set()
        for client in clients:
            client.join(90)
    assert not any(client.is_alive() for client in clients)
    shares = server.rows(
        "SELECT b.step, e.source, count(DISTINCT e.group_id) FROM episodes e JOIN batches b ON b.id = e.batch_id"
        " WHERE b.status = 'done' GROUP BY 1, 2 ORDER BY 1, 2"
    )
    steps = sorted({step for step, _, _ in shares})
    assert len(steps) >= 4
    assert shares == [(step, source, count) for step in steps for source, count in (("math", 2), ("tools", 1))]


def _rollouts(server: LiveServer, source: str, concurrency: int, stop: threading.Event) -> None:
    def tasks() -> Iterator[str]:
        number = 0
        while not stop.is_set():
            number += 1
            yield f"{source} {number}"

    with server.swarm() as swarm:
        try:
            swarm.run(_agent, tasks(), source=source, concurrency=concurrency, progress=False, wait=20.0)
        except UnavailableError:
            if not stop.is_set():  # at the end one source may wait for the other, which has stopped
                raise
