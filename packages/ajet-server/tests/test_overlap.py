"""Rolling goes on while an update computes: the training loop against a fake worker."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from server_helpers import Running, running, until

from ajet_core.errors import UnavailableError
from ajet_core.events import EngineState
from ajet_server import conductor as conductor_module

pytestmark = pytest.mark.anyio

ROLLING, UPDATING, SYNCING = EngineState.ROLLING, EngineState.UPDATING, EngineState.SYNCING


@asynccontextmanager
async def overlapping(tmp_path: Path, model: Path, how: str, **sections: Any) -> AsyncIterator[Running]:
    """A server that rolls on during updates, in the middle of its first one."""
    async with running(tmp_path, model, engine={"during_update": how}, **sections) as live:
        await live.reach(ROLLING)
        live.worker.hold_update()
        await live.rollout()
        await until(lambda: len(live.worker.log("update")) == 1)
        assert live.state is UPDATING
        yield live


def updates(live: Running) -> list[list[str]]:
    return [entry["episodes"] for entry in live.worker.log("checkpoint")]


@pytest.mark.parametrize("how", ["finish", "continue"])
async def test_episodes_are_opened_and_finished_during_an_update(tmp_path: Path, model: Path, how: str) -> None:
    async with overlapping(tmp_path, model, how) as live:
        record = await live.open()
        answer = await live.chat(record)
        assert answer.weight_version == 0
        await live.finish(record)
        assert live.state is UPDATING
        live.worker.release_update()
        await live.reach(ROLLING, step=2)
        assert updates(live)[1] == [record.id]
        await until(lambda: len(live.events("state_changed")) == 9)
        states = [event["state"] for event in live.events("state_changed")]
        turn = ["rolling", "updating", "syncing"]
        assert states == ["booting", "syncing", *turn, *turn, "rolling"]


async def test_no_more_is_handed_out_during_an_update_than_the_next_batch_wants(tmp_path: Path, model: Path) -> None:
    async with overlapping(tmp_path, model, "finish") as live:
        await live.open()
        with pytest.raises(UnavailableError, match="all under way \\(1 of 1\\)"):
            await live.open(task="another task")


async def test_a_running_call_ends_on_the_old_weights_before_they_change(tmp_path: Path, model: Path) -> None:
    async with overlapping(tmp_path, model, "finish") as live:
        record = await live.open()
        live.worker.hold()
        call = asyncio.create_task(live.chat(record))
        await until(lambda: len(live.worker.log("generate")) == 2)
        live.worker.release_update()
        await live.reach(SYNCING, step=1)
        assert "once 1 running calls have ended" in live.server.status().cause
        evaluated = await live.open(kind="eval")
        waiting = asyncio.create_task(live.chat(evaluated))
        await until(lambda: live.server.status().requests_waiting == 1)
        assert live.worker.log("sync")[1:] == []
        live.worker.release()
        assert (await call).weight_version == 0
        assert (await waiting).weight_version == 1


async def test_a_call_that_does_not_end_is_recalled(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conductor_module, "_MIN_PATIENCE_S", 0.05)
    async with overlapping(tmp_path, model, "finish", limits={"drain_timeout_s": 0.1}) as live:
        record = await live.open()
        live.worker.hold()
        call = asyncio.create_task(live.chat(record))
        await until(lambda: len(live.worker.log("generate")) == 2)
        live.worker.release_update()
        await until(lambda: len(live.worker.log("generate")) == 3)
        live.worker.release()
        assert (await call).weight_version == 1
        assert len({entry["request_id"] for entry in live.worker.log("cancel")}) == 1
        assert live.server.status().requests_recalled == 1


@pytest.mark.parametrize("how", ["finish", "continue"])
async def test_a_worker_that_dies_in_an_update_has_its_batch_done_again_and_its_calls_sent_again(
    tmp_path: Path, model: Path, how: str
) -> None:
    async with overlapping(tmp_path, model, how) as live:
        record = await live.open()
        live.worker.hold()
        call = asyncio.create_task(live.chat(record))
        await until(lambda: len(live.worker.log("generate")) == 2)
        pid = live.server.status().worker_pid
        assert pid is not None
        live.worker.release_update()
        live.worker.hold_update()
        os.kill(pid, signal.SIGKILL)
        await until(lambda: len(live.worker.log("update")) == 2)
        live.worker.release_update()
        live.worker.release()
        assert (await call).weight_version == 1
        await live.finish(record)
        await live.reach(ROLLING, step=2)
        asked = live.worker.log("update")
        assert asked[0]["batch_id"] == asked[1]["batch_id"]
        assert updates(live) == [asked[0]["episodes"], [record.id]]


async def test_an_episode_that_outlives_two_updates_is_set_aside(tmp_path: Path, model: Path) -> None:
    async with overlapping(tmp_path, model, "finish", batch={"max_staleness": 1}) as live:
        late = await live.open()
        await live.chat(late)
        live.worker.release_update()
        await live.reach(ROLLING, step=1)
        await live.rollout()
        await live.reach(ROLLING, step=2)
        await live.finish(late)
        await until(lambda: live.server.status().pool.stale_episodes == 1)
        assert all(late.id not in episodes for episodes in updates(live))


async def test_a_running_call_goes_on_with_the_new_weights_and_says_so(tmp_path: Path, model: Path) -> None:
    async with overlapping(tmp_path, model, "continue") as live:
        record = await live.open()
        live.worker.hold()
        call = asyncio.create_task(live.chat(record))
        await until(lambda: len(live.worker.log("generate")) == 2)
        live.worker.release_update()
        await live.reach(ROLLING, step=1)
        late = asyncio.create_task(live.chat(record))
        await until(lambda: len(live.worker.log("generate")) == 3)
        live.worker.release()
        answer, later = await call, await late
        assert (answer.weight_version, answer.weight_versions) == (0, [0, 1])
        assert answer.choices[0].versions == ((0, 0), (1, 1))
        assert (later.weight_version, later.choices[0].versions) == (1, ((0, 1),))
        stored = [(one.record.weight_version, one.record.version_spans) for one in live.calls(record)]
        assert stored == [(0, "[[0,0],[1,1]]"), (1, None)]
        assert live.server.status().requests_continued == 1
        scraped = live.server.metrics.exposition().decode()
        assert "ajet_capture_tokens_continued_total 2.0" in scraped
        assert "ajet_sync_calls_continued 1.0" in scraped
        await live.finish(record)
        await live.reach(ROLLING, step=2)
        assert live.worker.log("cancel") == []
