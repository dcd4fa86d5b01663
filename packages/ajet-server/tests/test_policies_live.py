"""Every batch policy drives a run, and a replay of its ledger makes the same batches."""

import time
from pathlib import Path
from typing import Any

import pytest
from server_helpers import Running, running, until

from ajet_core.errors import RequestError, UnavailableError
from ajet_core.events import EngineState
from ajet_core.wire import Readiness
from ajet_server.capture.history import read_history
from ajet_server.capture.records import EpisodeRecord
from ajet_server.episodes.agreeing import agree
from ajet_server.episodes.replay import replay

pytestmark = pytest.mark.anyio
ROLLING = EngineState.ROLLING


async def say(live: Running, client: str, *, ready: bool = True) -> None:
    runtime = live.server.runtime
    body = Readiness(client_id=client, ready=ready)
    await agree(body, runtime.pool, runtime.episodes.changes, live.server.events)


async def begin(live: Running, name: str, client: str) -> list[EpisodeRecord]:
    """Opens a group of two, once the server lets it."""
    deadline = time.monotonic() + 20
    while True:
        changes = live.server.runtime.episodes.changes
        seen = changes.count
        try:
            return [await live.open(task=name, group_id=name, client_id=client) for _ in range(2)]
        except UnavailableError:
            assert time.monotonic() < deadline
            await changes.wait(seen, 1.0)


async def end(live: Running, opened: list[EpisodeRecord], *rewards: float) -> set[str]:
    """Runs and finishes a group."""
    for record, reward in zip(opened, rewards, strict=True):
        await live.chat(record)
        await live.finish(record, reward)
    return {record.id for record in opened}


def taken(live: Running) -> list[set[str]]:
    return [set(entry["episodes"]) for entry in live.worker.log("checkpoint")]


@pytest.mark.parametrize(
    "batch",
    [
        {"policy": "episodes", "size": 4},
        {"policy": "groups", "size": 2},
        {"policy": "any_client", "size": None},
        {"policy": "all_clients", "size": None},
        {"policy": "groups", "size": 2, "when": "groups >= 2 and all_clients or waited > 1h"},
    ],
)
async def test_each_policy_drives_a_run(tmp_path: Path, model: Path, batch: dict[str, Any]) -> None:
    async with running(tmp_path, model, batch={"group_size": 2, **batch}) as live:
        job = live.server.runtime.job
        expected: list[set[str]] = []
        for step in range(3):
            await live.reach(ROLLING, step=step)
            one, other = await begin(live, f"a{step}", "a"), await begin(live, f"b{step}", "b")
            ids = await end(live, one, 1, 1)
            if job.batch.asks_clients and job.batch.policy != "any_client":
                await say(live, "a")
            expected.append(ids | await end(live, other, 0, 1))
            if job.batch.asks_clients:
                await say(live, "b")
            await live.reach(ROLLING, step=step + 1)
            assert live.server.status().pool.clients_ready == [], "what was said has had its effect"
        assert taken(live) == expected
        assert_replayed(live, expected)


def assert_replayed(live: Running, expected: list[set[str]]) -> None:
    history = live.server.ledger.read_now(read_history)
    assert [set(update.episode_ids) for update in replay(history, live.server.runtime.job).updates] == expected


async def test_groups_that_teach_nothing_are_replaced(tmp_path: Path, model: Path) -> None:
    batch = {"policy": "informative_groups", "size": 1, "group_size": 2}
    async with running(tmp_path, model, batch=batch) as live:
        await live.reach(ROLLING)
        for name in ("one", "two"):
            await end(live, await begin(live, name, "a"), 0, 0)
        third = await begin(live, "three", "a")
        said = "nothing trains: 0 of 1 informative groups (2 groups complete): all rewards are 0; 2 open episodes"
        assert live.server.status().why == said
        ids = await end(live, third, 0, 1)
        await live.reach(ROLLING, step=1)
        assert taken(live) == [ids]
        assert_replayed(live, [ids])


async def test_a_wait_that_is_long_enough_is_a_batch(tmp_path: Path, model: Path) -> None:
    async with running(
        tmp_path, model, batch={"policy": "groups", "size": 4, "group_size": 2, "when": "groups >= 4 or waited > 0.2s"}
    ) as live:
        await live.reach(ROLLING)
        ids = await end(live, await begin(live, "one", "a"), 0, 1)
        await live.reach(ROLLING, step=1)
        assert taken(live) == [ids]


async def test_what_clients_said_survives_a_restart(tmp_path: Path, model: Path) -> None:
    batch = {"policy": "all_clients", "size": None, "group_size": 2}
    async with running(tmp_path, model, batch=batch) as live:
        await live.reach(ROLLING)
        ids = await end(live, await begin(live, "one", "a"), 0, 1)
        await live.open(task="two", group_id="two", client_id="b")
        await say(live, "a")
        await say(live, "b")
        await say(live, "b", ready=False)
    async with running(tmp_path, model, batch=batch) as live:
        await live.reach(ROLLING)
        pool = live.server.status().pool
        assert (pool.clients_ready, pool.clients_awaited) == (["a"], ["b"])
        why = live.server.status().why
        assert why == "nothing trains: 1 of 2 clients ready; not ready: b; 1 open episode"
        await say(live, "b")
        await until(lambda: live.state is EngineState.DRAINING)
        assert live.server.status().why == "a batch is complete; the update waits for 1 open episode to finish"
        (open_one,) = live.server.runtime.episodes._open.states
        await live.chat(open_one.record)
        await live.finish(open_one.record)
        await live.reach(ROLLING, step=1)
        assert taken(live) == [ids]
    async with running(tmp_path, model, batch=batch) as live:
        assert live.server.status().pool.clients_ready == [], "it had its effect"
        assert live.server.status().why.startswith("nothing trains: the engine is ")


async def test_a_fast_source_waits_for_a_slow_one(tmp_path: Path, model: Path) -> None:
    batch = {"policy": "groups", "size": 3, "group_size": 2, "sources": {"math": 0.67, "tools": 0.33}}
    async with running(tmp_path, model, batch=batch) as live:
        expected: list[set[str]] = []
        for step in range(2):
            await live.reach(ROLLING, step=step)
            ids: set[str] = set()
            for name in ("one", "two"):
                opened = [await live.open(task=f"{name}{step}", client_id="fast", source="math") for _ in range(2)]
                ids |= await end(live, opened, 0, 1)
            with pytest.raises(UnavailableError, match=r"groups of source 'math' of the next batch .* \(2 of 2\)"):
                await live.open(task="three", client_id="fast", source="math")
            status = live.server.status()
            assert "2 of 3 groups complete; by source: tools 0 of 1" in status.why
            assert [(view.source, view.complete, view.quota) for view in status.pool.sources] == [
                ("math", 2, 2),
                ("tools", 0, 1),
            ]
            slow = [await live.open(task=f"slow{step}", client_id="slow", source="tools") for _ in range(2)]
            expected.append(ids | await end(live, slow, 1, 0))
            await live.reach(ROLLING, step=step + 1)
        assert taken(live) == expected
        assert_replayed(live, expected)
        with pytest.raises(RequestError, match=r"'code' has no share; batch\.sources has math, tools"):
            await live.open(source="code")
        assert live.server.runtime.episodes.view(slow[0].id).source == "tools"
