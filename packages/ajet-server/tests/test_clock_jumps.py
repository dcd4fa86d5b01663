"""The system's clock jumps by hours: nobody expires for it, nothing is forgotten, no wait is negative."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from server_helpers import Running, running, until

from ajet_core.episode import EpisodeStatus
from ajet_core.events import EngineState
from ajet_core.wire import Readiness
from ajet_server.episodes.agreeing import agree

pytestmark = pytest.mark.anyio
ROLLING = EngineState.ROLLING
HOURS = 10 * 3600.0
ASKED = {"policy": "all_clients", "size": None, "group_size": 2}
Jump = Callable[[float], None]


@pytest.fixture
def jump(monkeypatch: pytest.MonkeyPatch) -> Jump:
    """Sets the system's clock forth or back by seconds; the monotonic one goes on."""
    real, offset = time.time, [0.0]

    def by(seconds: float) -> None:
        offset[0] += seconds

    monkeypatch.setattr(time, "time", lambda: real() + offset[0])
    return by


async def say_ready(live: Running, client: str) -> None:
    runtime = live.server.runtime
    body = Readiness(client_id=client, ready=True)
    await agree(body, runtime.pool, runtime.episodes.changes, live.server.events)


@pytest.mark.parametrize("seconds", [HOURS, -HOURS])
async def test_open_episodes_stay_open(tmp_path: Path, model: Path, jump: Jump, seconds: float) -> None:
    async with running(tmp_path, model) as live:
        await live.reach(ROLLING)
        record = await live.open()
        jump(seconds)
        episodes = live.server.runtime.episodes
        assert await episodes.expire_silent() == 0
        assert 0 < episodes.heartbeat(record.id) <= 120
        await live.chat(record)
        await live.finish(record)
        await live.reach(ROLLING, step=1)


@pytest.mark.parametrize("seconds", [HOURS, -HOURS])
async def test_open_episodes_stay_open_over_a_restart(tmp_path: Path, model: Path, jump: Jump, seconds: float) -> None:
    async with running(tmp_path, model) as live:
        await live.reach(ROLLING)
        record = await live.open()
    jump(seconds)
    async with running(tmp_path, model) as live:
        episodes = live.server.runtime.episodes
        assert await episodes.expire_silent() == 0
        assert 0 < episodes.heartbeat(record.id) <= 120
        await live.reach(ROLLING)
        await live.chat(record)
        await live.finish(record)
        await live.reach(ROLLING, step=1)


async def first_update(live: Running) -> None:
    """Of a group of client "a", who agrees to it."""
    await live.reach(ROLLING)
    for _ in range(2):
        await live.rollout(group_id="first", client_id="a")
    await say_ready(live, "a")


async def test_what_clients_said_after_the_last_update_is_kept(tmp_path: Path, model: Path, jump: Jump) -> None:
    async with running(tmp_path, model, batch=ASKED) as live:
        await first_update(live)
        await live.reach(ROLLING, step=1)
        jump(-HOURS)
        await live.open(client_id="b")
        await say_ready(live, "a")
    async with running(tmp_path, model, batch=ASKED) as live:
        assert live.server.pool_view().clients_ready == ["a"]


async def test_what_had_its_update_is_not_said_again(tmp_path: Path, model: Path, jump: Jump) -> None:
    async with running(tmp_path, model, batch=ASKED) as live:
        await live.reach(ROLLING)
        waiting = await live.open(client_id="b")  # so that the update comes after the clock was set back
        jump(HOURS)
        await first_update(live)
        jump(-HOURS)
        await live.server.runtime.episodes.lose(waiting.id, EpisodeStatus.ABORTED, "it held the update back")
        await say_ready(live, "b")
        await live.reach(ROLLING, step=1)
    async with running(tmp_path, model, batch=ASKED) as live:
        assert live.server.pool_view().clients_ready == []


async def test_no_wait_is_negative(tmp_path: Path, model: Path, jump: Jump) -> None:
    batch = {"policy": "groups", "size": 1, "group_size": 2, "when": "groups >= 1 or waited > 1h"}
    async with running(tmp_path, model, batch=batch) as live:
        await live.reach(ROLLING)
        await live.rollout(task="x", group_id="g")
    jump(-HOURS)
    async with running(tmp_path, model, batch=batch) as live:
        await live.reach(ROLLING)
        (row,) = live.server.runtime.pool.rows
        assert row.finished_at <= time.monotonic()
        await live.rollout(task="x", group_id="g")
        await live.reach(ROLLING, step=1)
        await until(lambda: not live.server.runtime.pool.rows)
