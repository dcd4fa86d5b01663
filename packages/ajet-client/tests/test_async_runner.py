import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest

from ajet_client import AsyncEpisode, AsyncSwarm, EpisodeRecord, RunReport
from ajet_client.testing import FakeClock, FakeServer
from ajet_core.errors import ConflictError, KeyRefusedError, RequestError, UnavailableError


def run(server: FakeServer, agent: object, tasks: object, **options: object) -> RunReport:
    async def main() -> RunReport:
        async with AsyncSwarm(server.url, transport=server.transport(), clock=FakeClock()) as swarm:
            return await swarm.run(agent, tasks, **({"progress": False} | options))  # type: ignore[arg-type]

    return asyncio.run(main())


async def one(episode: AsyncEpisode) -> float:
    return 1.0


def test_groups(server: FakeServer) -> None:
    report = run(server, one, ["a", "b"], group_size=3)
    assert (report.finished, report.reward_mean) == (6, 1.0)
    assert sorted(map(len, report.rewards_by_group().values())) == [3, 3]


def test_agents_of_all_sorts(server: FakeServer) -> None:
    async def sets(episode: AsyncEpisode) -> None:
        episode.reward(0.5, tokens=2)

    def plain(episode: AsyncEpisode) -> float:
        return 0.25

    assert run(server, sets, ["a"]).metric_means == {"tokens": 2.0}
    assert run(server, plain, ["a"]).reward_mean == 0.25


def test_a_failed_attempt_is_refilled_in_the_same_group(server: FakeServer) -> None:
    failures = iter([ConnectionError("the sandbox died"), None, TimeoutError("too slow")])

    async def agent(episode: AsyncEpisode) -> float:
        if (error := next(failures, None)) is not None:
            raise error
        return 1.0

    report = run(server, agent, ["a"], group_size=2, concurrency=1, attempts=2)
    assert (report.finished, report.failed, report.attempts) == (2, 0, 4)
    assert len({episode.group_id for episode in server.episodes}) == 1


def test_a_hopeless_episode_is_reported(server: FakeServer) -> None:
    async def agent(episode: AsyncEpisode) -> None:
        pass

    report = run(server, agent, ["a"])
    assert (report.failed, report.attempts, report.records[0].reward) == (1, 3, None)
    assert "returned None" in (report.records[0].error or "")


@pytest.mark.parametrize("concurrency", [1, 5])
def test_concurrency_is_used_and_never_exceeded(server: FakeServer, concurrency: int) -> None:
    now, most = 0, 0

    async def agent(episode: AsyncEpisode) -> float:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await barrier.wait()
        now -= 1
        return 1.0

    barrier = asyncio.Barrier(concurrency)
    assert run(server, agent, range(concurrency * 4), concurrency=concurrency).finished == concurrency * 4
    assert most == concurrency


def sync_stream(read: list[int]) -> Iterator[int]:
    for number in itertools.count():
        read.append(number)
        yield number


async def async_stream(read: list[int]) -> AsyncIterator[int]:
    for number in itertools.count():
        read.append(number)
        yield number


@pytest.mark.parametrize("stream", [sync_stream, async_stream])
def test_an_endless_stream_is_read_only_as_far_as_there_is_room(
    server: FakeServer, stream: Callable[[list[int]], Iterator[int] | AsyncIterator[int]]
) -> None:
    read: list[int] = []

    def on_result(record: EpisodeRecord) -> None:
        if len(server.rewards) >= 20:
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough") as caught:
        run(server, one, stream(read), concurrency=4, on_result=on_result)
    assert len(read) <= 25
    assert "the run was stopped: " in caught.value.__notes__[0]


def test_a_finite_async_stream(server: FakeServer) -> None:
    async def tasks() -> AsyncIterator[str]:
        yield "a"
        yield "b"

    assert run(server, one, tasks(), group_size=2).finished == 4


@pytest.mark.parametrize("error", [KeyRefusedError("unknown token"), RequestError("bad")], ids=repr)
def test_a_refused_opening_ends_the_run(server: FakeServer, error: Exception) -> None:
    server.refuse("open", error, times=1000)  # type: ignore[arg-type]
    with pytest.raises(type(error)):
        run(server, one, itertools.count(), concurrency=3)
    assert len(server.requests) <= 4


def test_when_no_episode_can_be_opened_the_open_ones_are_aborted(server: FakeServer) -> None:
    async def agent(episode: AsyncEpisode) -> float:
        server.fail("open", "full", retry_after_s=5, times=1000)
        await asyncio.Event().wait()
        return 1.0

    with pytest.raises(UnavailableError, match="full"):
        run(server, agent, itertools.count(), concurrency=2, wait=60)
    assert [(episode.status, episode.reason) for episode in server.episodes] == [("aborted", "CancelledError")]


def test_a_cancellation_aborts_everything_and_goes_on(server: FakeServer) -> None:
    async def main() -> None:
        inside = asyncio.Barrier(4)

        async def agent(episode: AsyncEpisode) -> float:
            await inside.wait()
            await asyncio.Event().wait()
            return 1.0

        async with AsyncSwarm(server.url, transport=server.transport()) as swarm:
            task = asyncio.create_task(swarm.run(agent, itertools.count(), concurrency=3, progress=False))
            await inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert len(server.episodes) == 3
    assert {(episode.status, episode.reason) for episode in server.episodes} == {("aborted", "CancelledError")}


def test_a_group_that_could_never_be_trained_is_refused(server: FakeServer) -> None:
    async def body(swarm: AsyncSwarm) -> None:
        await swarm.set_job({"model": {"path": "m"}})
        with pytest.raises(RequestError, match="groups of 8"):
            await swarm.run(one, ["a"], group_size=2, progress=False)
        with pytest.raises(RequestError, match="no two of these tasks are equal"):
            await swarm.run(one, ["a", "b"], group_size=1, progress=False)
        assert (await swarm.run(one, ["a", "b"], progress=False)).finished == 16
        assert (await swarm.run(one, ["a", "b"], kind="eval", weights=3, source="math", progress=False)).finished == 2
        assert [(episode.weights, episode.source) for episode in server.episodes[-2:]] == [(3, "math")] * 2

    async def main(body: Callable[[AsyncSwarm], Coroutine[Any, Any, None]]) -> None:
        async with AsyncSwarm(server.url, transport=server.transport()) as swarm:
            await body(swarm)

    asyncio.run(main(body))


def test_a_group_that_is_left_short_is_reported(server: FakeServer) -> None:
    async def agent(episode: AsyncEpisode) -> float:
        raise TimeoutError("too slow")

    report = run(server, agent, ["a"], group_size=2)
    assert report.short_groups == {server.episodes[0].group_id: 2}
    assert "stays short" in (report.records[0].error or "")


def test_an_episode_whose_group_others_have_filled_finds_another_place(server: FakeServer) -> None:
    server.refuse("open", ConflictError("group_id: the group is full", field="group_id"))
    assert run(server, one, ["a"], group_size=2, concurrency=1).finished == 2
    assert [episode.group_named for episode in server.episodes] == [False, True]


def test_a_cancellation_cuts_the_openings_that_the_server_holds() -> None:
    async def main(server: FakeServer) -> None:
        async with AsyncSwarm(server.url) as swarm:
            task = asyncio.create_task(swarm.run(one, itertools.count(), concurrency=3, progress=False))
            assert await asyncio.to_thread(server.wait_for, "open", 3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(server.wait_until_left, 3)

    with FakeServer().serve() as server:
        server.hold("open", times=3)
        asyncio.run(main(server))
