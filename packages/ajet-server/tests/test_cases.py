"""What went wrong for others between rollouts and batches: failures, partial batches, waits, full pools."""

import asyncio
import threading
from pathlib import Path

import pytest
from server_helpers import Running, running, until

from ajet_core.episode import EpisodeStatus
from ajet_core.errors import EpisodeClosedError, UnavailableError
from ajet_core.events import EngineState

pytestmark = pytest.mark.anyio
ROLLING = EngineState.ROLLING


def _trained(live: Running) -> list[set[str]]:
    """The episodes of each batch."""
    rows = live.server.ledger.read_now(
        lambda db: db.execute(
            "SELECT b.step, e.id FROM batches b JOIN episodes e ON e.batch_id = b.id ORDER BY b.step"
        ).fetchall()
    )
    steps = sorted({row["step"] for row in rows})
    return [{row["id"] for row in rows if row["step"] == step} for step in steps]


async def test_a_failed_attempt_is_neither_counted_nor_a_zero(tmp_path: Path, model: Path) -> None:
    """Whether the client gave it up, or it fell silent: its slot is filled again, and what comes late is refused."""
    batch = {"policy": "groups", "size": 1, "group_size": 2}
    async with running(tmp_path, model, batch=batch) as live:
        await live.reach(ROLLING)
        good = await live.rollout(0.5)
        failed = []
        for status in (EpisodeStatus.ABORTED, EpisodeStatus.EXPIRED):
            record = await live.open()
            await live.chat(record)
            await live.server.runtime.episodes.lose(record.id, status, "its environment died")
            with pytest.raises(EpisodeClosedError):
                await live.finish(record, 0.0)
            failed.append(record.id)
            assert live.server.pool_view().finished_episodes == 1
        again = await live.rollout(1.0)
        assert again.group_id == good.group_id, "the slot was filled again"
        await live.reach(ROLLING, step=1)
        assert _trained(live) == [{good.id, again.id}]
        assert all(live.server.runtime.episodes.view(name).reward is None for name in failed)


@pytest.mark.parametrize(
    ("batch", "rewards"),
    [
        ({"policy": "episodes", "size": 3}, [1.0, 1.0, 1.0]),
        ({"policy": "groups", "size": 1, "group_size": 3}, [1.0, 0.0, 1.0]),
        ({"policy": "informative_groups", "size": 1, "group_size": 3}, [0.0, 0.0, 1.0]),
    ],
)
async def test_a_batch_is_whole_or_waits(
    tmp_path: Path, model: Path, batch: dict[str, object], rewards: list[float]
) -> None:
    async with running(tmp_path, model, batch=batch) as live:
        await live.reach(ROLLING)
        done = []
        for reward in rewards[:-1]:
            done.append((await live.rollout(reward)).id)
            decision = live.server.runtime.pool.decision()
            assert (decision.ready, decision.take) == (False, ())
            assert not live.worker.log("update")
        done.append((await live.rollout(rewards[-1])).id)
        await live.reach(ROLLING, step=1)
        assert _trained(live) == [set(done)]


async def test_an_evaluation_that_never_ends_holds_no_update_up(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model, limits={"drain_timeout_s": 3600}) as live:
        await live.reach(ROLLING)
        endless = await live.open(kind="eval")
        for step in (1, 2):
            await live.rollout()
            await live.reach(ROLLING, step=step)
        await live.chat(endless)
        assert live.server.runtime.episodes.view(endless.id).status == "open"


async def test_a_heartbeat_does_not_wait_for_the_disk(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model) as live:
        await live.reach(ROLLING)
        record, disk = await live.open(kind="eval"), threading.Event()
        busy = asyncio.create_task(live.server.ledger.write(lambda db: disk.wait(30)))
        await asyncio.sleep(0)
        episodes = live.server.runtime.episodes
        for _ in range(1000):
            episodes.check_control(record.id, live.server.keys.key(record.attempt_id, "control"))
            assert episodes.heartbeat(record.id) > 0
        assert not busy.done()
        disk.set()
        assert await busy


async def test_a_full_pool_survives_a_restart_and_loses_nothing(tmp_path: Path, model: Path) -> None:
    """At its bound nobody gets an episode, before and after; what is finished is trained, all of it, once."""
    batch = {"policy": "groups", "size": 1, "group_size": 3}
    async with running(tmp_path, model, batch=batch) as live:
        await live.reach(ROLLING)
        finished = {(await live.rollout()).id for _ in range(2)}
        last = await live.open()
        await live.chat(last)
        with pytest.raises(UnavailableError):
            await live.open()
    async with running(tmp_path, model, batch=batch) as live:
        await live.reach(ROLLING)
        pool = live.server.pool_view()
        assert (pool.finished_episodes, pool.open_episodes) == (2, 1)
        with pytest.raises(UnavailableError):
            await live.open()
        await live.finish(last)
        await live.reach(ROLLING, step=1)
        await until(lambda: live.server.pool_view().finished_episodes == 0)
        assert _trained(live) == [finished | {last.id}]
