# ruff: noqa: PT012 - what must raise here are whole `with` blocks
import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ajet_client import AsyncSwarm, Swarm
from ajet_client.testing import FakeClock, FakeServer
from ajet_core.config import BatchConfig, Job, ModelConfig
from ajet_core.errors import (
    EngineFailedError,
    EpisodeClosedError,
    NotFoundError,
    RequestError,
    RewardError,
    UnavailableError,
)
from ajet_core.events import EngineState, StateChanged


def run(
    server: FakeServer, body: Callable[[AsyncSwarm], Coroutine[Any, Any, None]], clock: FakeClock | None = None
) -> None:
    async def main() -> None:
        async with AsyncSwarm(server.url, transport=server.transport(), clock=clock or FakeClock()) as swarm:
            await body(swarm)

    asyncio.run(main())


SYNC_ONLY = {"stop", "isolation", "timeout", "watch"}
"""Threads are stopped by an event and tasks cancelled; agents outside the event loop are for `Swarm.run`."""


def test_it_offers_what_the_sync_swarm_offers() -> None:
    def offer(kind: type) -> dict[str, list[str]]:
        public = {name: value for name, value in vars(kind).items() if not name.startswith("_")}
        functions = {name: value for name, value in public.items() if callable(value)}
        return {
            name: [p for p in inspect.signature(f).parameters if p not in SYNC_ONLY] for name, f in functions.items()
        }

    assert offer(AsyncSwarm) == offer(Swarm)


def test_control(server: FakeServer) -> None:
    async def body(swarm: AsyncSwarm) -> None:
        assert (await swarm.wait_until_serving()).state == "rolling"
        await swarm.stop()
        assert (await swarm.status()).state == "offline"
        await swarm.start()
        server.job = Job(model=ModelConfig(path="m"), batch=BatchConfig(policy="all_clients"))
        assert (await swarm.ready()).clients_ready == [swarm.client_id]
        assert (await swarm.ready(False)).clients_ready == []
        server.job = None
        with pytest.raises(NotFoundError):
            await swarm.job()
        await swarm.set_job({"model": {"path": "m"}})
        assert (await swarm.job()).model.path == "m"
        assert repr(swarm) == "<AsyncSwarm http://fake.invalid>"

    run(server, body)


def test_an_episode_with_lost_answers(server: FakeServer) -> None:
    async def body(swarm: AsyncSwarm) -> None:
        server.cut("open")
        server.cut("finish")
        server.fail("finish")
        async with swarm.episode("task") as episode:
            episode.reward(0.5, a=1)
            with pytest.raises(RewardError):
                episode.reward(float("nan"))
        assert (await swarm.view(episode.id)).reward == 0.5
        assert len(server.episodes) == 1
        assert server.episodes[0].client_id == swarm.client_id

    run(server, body)


def test_aborts(server: FakeServer) -> None:
    async def body(swarm: AsyncSwarm) -> None:
        with pytest.raises(ValueError, match="mine"):
            async with swarm.episode():
                raise ValueError("mine")
        with pytest.warns(RuntimeWarning, match="without a reward") as caught:
            async with swarm.episode():
                pass
        assert caught[0].filename == __file__
        async with swarm.episode() as episode:
            await episode.abort("enough")
        with pytest.raises(EpisodeClosedError):
            async with swarm.episode() as episode:
                server.close_episode(episode.id)
                episode.reward(1)

    run(server, body)
    reasons = [episode.reason for episode in server.episodes]
    assert reasons == ["ValueError: mine", "the episode ended without a reward", "enough", "its lease ended"]


def test_a_cancellation_aborts_and_goes_on(server: FakeServer) -> None:
    async def body(swarm: AsyncSwarm) -> None:
        entered = asyncio.Event()

        async def agent() -> None:
            async with swarm.episode() as episode:
                episode.reward(1.0)
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(agent())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(server, body)
    assert (server.episodes[0].status, server.episodes[0].reason) == ("aborted", "CancelledError")


def test_waiting_has_a_deadline(server: FakeServer, clock: FakeClock) -> None:
    async def body(swarm: AsyncSwarm) -> None:
        server.fail("open", "updating (step 3)", retry_after_s=5, times=1000)
        with pytest.raises(UnavailableError, match=r"gave up after \d+ s opening an episode: updating"):
            async with swarm.episode(wait=60):
                pass

    run(server, body, clock)
    assert 50 < clock.time <= 60


def test_events_over_a_real_socket() -> None:
    async def main(server: FakeServer) -> None:
        async with AsyncSwarm(server.url, clock=FakeClock()) as swarm:
            for number in (1, 2):
                server.add_event(StateChanged(id=number, state=EngineState.ROLLING, cause="", step=0, weight_version=0))
            server.fail("events")
            ids: list[int] = []
            async for event in swarm.events():
                ids.append(event.id)
                if event.id == 2:
                    server.add_event(event.model_copy(update={"id": 3}))
                if event.id == 3:
                    break
            assert ids == [1, 2, 3]
            server.cut("events", times=1000)
            with pytest.raises(UnavailableError):
                await anext(swarm.events(timeout=10))

    with FakeServer().serve() as server:
        asyncio.run(main(server))


def test_many_episodes_at_once_over_real_sockets() -> None:
    async def main(server: FakeServer) -> None:
        async with AsyncSwarm(server.url) as swarm:

            async def one(number: int) -> None:
                async with swarm.episode(number) as episode:
                    episode.reward(number)

            await asyncio.gather(*(one(number) for number in range(100)))

    with FakeServer().serve() as server:
        asyncio.run(main(server))
    assert sorted(server.rewards) == list(range(100))


def test_a_shutdown_over_a_real_socket() -> None:
    async def main(server: FakeServer) -> None:
        async with AsyncSwarm(server.url) as swarm:
            await swarm.shutdown()
            with pytest.raises(UnavailableError, match=f"^no answer from {server.url}"):
                await swarm.shutdown()

    with FakeServer().serve() as server:
        asyncio.run(main(server))


def test_a_cancellation_cuts_an_opening_that_the_server_holds() -> None:
    async def main(server: FakeServer) -> None:
        async def wait_for_an_episode(swarm: AsyncSwarm) -> None:
            async with swarm.episode():
                pass

        async with AsyncSwarm(server.url) as swarm:
            task = asyncio.create_task(wait_for_an_episode(swarm))
            assert await asyncio.to_thread(server.wait_for, "open", 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(server.wait_until_left, 1)

    with FakeServer().serve() as server:
        server.hold("open")
        asyncio.run(main(server))


def test_a_failed_engine_is_not_waited_for(server: FakeServer, clock: FakeClock) -> None:
    async def body(swarm: AsyncSwarm) -> None:
        server.state = EngineState.FAILED
        with pytest.raises(EngineFailedError, match="the engine failed: a fake server"):
            async with swarm.episode():
                pass

    run(server, body, clock)
    assert (server.requests, clock.sleeps) == (["open"], [])


def test_an_agent_that_is_no_function_is_refused_at_once(server: FakeServer) -> None:
    async def body(swarm: AsyncSwarm) -> None:
        with pytest.raises(RequestError, match=r"Swarm\.run takes 'agent.py'") as caught:
            await swarm.run("agent.py", ["a"])  # type: ignore[arg-type]
        assert caught.value.field == "agent"

    run(server, body)
    assert "open" not in server.requests
