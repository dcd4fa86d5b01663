"""One client, several servers: their episodes are finished together or not at all."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest

from ajet_client import AsyncSwarm, Swarm, resolve, together
from ajet_client.testing import FakeClock, FakeEpisode, FakeServer
from ajet_core.config import BatchConfig, Job, ModelConfig
from ajet_core.episode import EpisodeStatus
from ajet_core.errors import (
    ConflictError,
    EpisodeClosedError,
    ForbiddenError,
    RequestError,
    StorageError,
    UnavailableError,
)
from ajet_core.wire import Follows

ABORTED, FINISHED, OPEN = EpisodeStatus.ABORTED, EpisodeStatus.FINISHED, EpisodeStatus.OPEN
CLOSING = ("prepare", "finish", "abort", "decide")


class Pair:
    """Two servers, `first` and `second`, and a swarm for each."""

    def __init__(self, stack: ExitStack) -> None:
        self.clock = FakeClock()
        self.first, self.second = FakeServer(), FakeServer()
        self.second.url = "http://second.invalid"
        self.a = stack.enter_context(self.swarm(self.first))
        self.b = stack.enter_context(self.swarm(self.second))

    def swarm(self, server: FakeServer, **options: Any) -> Swarm:
        return Swarm(server.url, **({"transport": server.transport(), "clock": self.clock} | options))

    @property
    def statuses(self) -> list[list[EpisodeStatus]]:
        return [[episode.status for episode in server.episodes] for server in (self.first, self.second)]

    @property
    def closing(self) -> tuple[list[str], list[str]]:
        """What each server was asked once its episodes were open."""
        first, second = ([name for name in server.requests if name in CLOSING] for server in (self.first, self.second))
        return first, second

    def expire(self) -> None:
        """What happens to the episodes of a dead client: those that follow a union wait on."""
        for server in (self.first, self.second):
            for episode in server.episodes:
                if episode.open and not follows(episode):
                    server.close_episode(episode.id)


def follows(episode: FakeEpisode) -> bool:
    return episode.promise is not None and isinstance(episode.promise.part, Follows)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack)


def rewarded(pair: Pair) -> None:
    """A whole union."""
    with together(pair.a, pair.b, task="t") as (planner, executor):
        planner.reward(0.25, parts=3)
        executor.reward(0.75)


def test_all_are_prepared_then_finished(pair: Pair) -> None:
    rewarded(pair)
    assert pair.statuses == [[FINISHED], [FINISHED]]
    assert pair.closing == (["prepare", "finish"], ["prepare", "decide"])
    (planner,), (executor,) = pair.first.episodes, pair.second.episodes
    assert (planner.reward, planner.metrics, executor.reward) == (0.25, {"parts": 3.0}, 0.75)
    assert planner.promise is not None
    assert executor.promise is not None
    assert planner.promise.union_id == executor.promise.union_id
    assert (planner.task, executor.task) == ("t", "t")


def test_an_exception_aborts_all_and_goes_on(pair: Pair) -> None:
    def failing() -> None:
        with together(pair.a, pair.b) as team:
            team[0].reward(1)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        failing()
    assert pair.statuses == [[ABORTED], [ABORTED]]
    assert pair.second.episodes[0].reason == "ValueError: mine"


def test_a_missing_reward_aborts_all_with_a_warning(pair: Pair) -> None:
    with pytest.warns(RuntimeWarning, match="without a reward for ep_") as warned, together(pair.a, pair.b) as team:
        team[0].reward(1)
    assert warned[0].filename == __file__
    assert pair.statuses == [[ABORTED], [ABORTED]]


def test_one_aborted_episode_aborts_all(pair: Pair) -> None:
    with together(pair.a, pair.b) as (planner, executor):
        planner.reward(1)
        executor.abort("it is lost")
    assert pair.statuses == [[ABORTED], [ABORTED]]
    with together(pair.a, pair.b) as team:
        team.abort("all of it")
        team.abort("again")
    assert pair.statuses == [[ABORTED] * 2, [ABORTED] * 2]


@pytest.mark.parametrize("route", ["prepare", "finish"])
def test_a_refusal_before_the_decision_aborts_all(pair: Pair, route: str) -> None:
    server = pair.second if route == "prepare" else pair.first
    server.refuse(route, ConflictError("it made no call"))
    with pytest.raises(ConflictError, match="no call"):
        rewarded(pair)
    assert pair.statuses == [[ABORTED], [ABORTED]]


@pytest.mark.parametrize("number", [0, 1])
def test_an_episode_that_its_server_closed_aborts_the_others(pair: Pair, number: int) -> None:
    servers = (pair.first, pair.second)

    def closed() -> None:
        with together(pair.a, pair.b) as team:
            team.reward([1, 2])
            servers[number].close_episode(team[number].id)

    with pytest.raises(EpisodeClosedError):
        closed()
    assert [server.episodes[0].status for server in servers].count(ABORTED) == 1
    assert pair.first.rewards == pair.second.rewards == []


def test_the_deciding_episode_expires_between_prepare_and_finish(pair: Pair) -> None:
    class Expiring(httpx2.MockTransport):
        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            answer = super().handle_request(request)
            if request.url.path.endswith("/prepare"):
                pair.first.close_episode(pair.first.episodes[0].id)
            return answer

    swarm = pair.swarm(pair.second, transport=Expiring(pair.second._respond))
    with swarm as b, pytest.raises(EpisodeClosedError), together(pair.a, b) as team:
        team.reward([1, 1])
    assert pair.statuses == [[EpisodeStatus.EXPIRED], [ABORTED]]
    assert pair.closing[1] == ["prepare", "abort", "decide"]


@pytest.mark.parametrize(("number", "route"), [(0, "prepare"), (0, "finish"), (1, "prepare"), (1, "decide")])
@pytest.mark.parametrize("acted", [True, False])
def test_a_lost_answer_costs_nothing(pair: Pair, number: int, route: str, acted: bool) -> None:
    (pair.first, pair.second)[number].cut(route, acted=acted)
    rewarded(pair)
    assert pair.statuses == [[FINISHED], [FINISHED]]


def test_when_the_decision_is_unknown_nothing_is_aborted(pair: Pair) -> None:
    pair.first.cut("finish", times=1000, acted=True)
    with pytest.raises(UnavailableError) as caught:
        rewarded(pair)
    assert "whether union un_" in caught.value.__notes__[0]
    assert pair.statuses == [[FINISHED], [OPEN]]
    resolution = resolve(pair.a, pair.b)
    assert (len(resolution.committed), resolution.aborted, resolution.undecided) == (1, [], [])
    assert pair.statuses == [[FINISHED], [FINISHED]]
    assert pair.second.rewards == [0.75]


def test_a_server_that_cannot_be_told_is_told_later(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    pair.second.cut("decide", times=1000, acted=False)
    rewarded(pair)
    assert "its server has still to hear of it" in caplog.text
    assert pair.statuses == [[FINISHED], [OPEN]]
    pair.second._faults.clear()
    rewarded(pair)  # entering brings what was left
    assert pair.statuses == [[FINISHED] * 2, [FINISHED] * 2]


def test_resolve_says_what_is_undecided(pair: Pair) -> None:
    pair.first.cut("finish", times=1000, acted=False)
    with pytest.raises(UnavailableError):
        rewarded(pair)
    resolution = resolve(pair.a, pair.b)
    assert (
        str(resolution)
        == f"0 committed, 0 aborted, 1 undecided ({resolution.undecided[0].union_id} waits for {pair.a.url})"
    )
    with pair.swarm(FakeServer()) as other:  # of a server that was not asked, too
        assert len(resolve(pair.b, other).undecided) == 1
    pair.expire()
    resolution = resolve(pair.b, pair.a)
    assert (len(resolution.aborted), resolution.undecided) == (1, [])
    assert pair.statuses == [[EpisodeStatus.EXPIRED], [ABORTED]]


class CrashError(BaseException):
    """The client's process is gone."""


@pytest.mark.parametrize("acted", [True, False])
@pytest.mark.parametrize("last", range(12))
def test_a_client_that_dies_at_any_request_leaves_nothing_mixed(pair: Pair, last: int, acted: bool) -> None:
    sent = 0

    def dying(server: FakeServer) -> httpx2.MockTransport:
        def respond(request: httpx2.Request) -> httpx2.Response:
            nonlocal sent
            sent += 1
            if sent > last or (sent == last and not acted):
                raise CrashError
            answer = server._respond(request)
            if sent == last:
                raise CrashError
            return answer

        return httpx2.MockTransport(respond)

    with (
        pair.swarm(pair.first, transport=dying(pair.first)) as a,
        pair.swarm(pair.second, transport=dying(pair.second)) as b,
    ):
        try:
            with together(a, b) as team:
                team.reward([1, 2])
        except CrashError:
            pass
        else:
            assert last > 8
    pair.expire()
    assert resolve(pair.a, pair.b).undecided == []
    finished = [episode.status is FINISHED for server in (pair.first, pair.second) for episode in server.episodes]
    assert all(finished) or not any(finished)
    assert not any(episode.open for server in (pair.first, pair.second) for episode in server.episodes)
    if last > 8:
        assert finished == [True, True]


def test_all_are_opened_or_none(pair: Pair) -> None:
    pair.second.refuse("open", UnavailableError("all under way", retry_after_s=1), times=20)
    rewarded(pair)
    assert pair.statuses == [[ABORTED, FINISHED], [FINISHED]]
    assert pair.first.episodes[0].reason == "another server of the team hands out no episode now"
    assert pair.first.requests.count("open") == 2, "the next round begins where it was busy"


def test_the_wait_for_an_opening_ends(pair: Pair) -> None:
    pair.second.refuse("open", UnavailableError("all under way", retry_after_s=1), times=10_000)
    with pytest.raises(UnavailableError, match="all under way"), together(pair.a, pair.b, wait=50):
        raise AssertionError
    assert not any(episode.open for episode in pair.first.episodes)
    assert pair.clock.time < 70


def test_a_server_that_fails_for_good_gives_the_others_back(pair: Pair) -> None:
    pair.second.refuse("open", ConflictError("group_id: full", field="group_id"))
    with pytest.raises(ConflictError), together(pair.a, pair.b):
        raise AssertionError
    assert pair.statuses == [[ABORTED], []]


def test_a_server_twice_gives_each_role_a_group(pair: Pair) -> None:
    with together(pair.a, pair.a, task="game", group_id="g") as (white, black):
        white.reward(1)
        black.reward(-1)
    first, second = pair.first.episodes
    assert (first.group_id, second.group_id) == ("g-0", "g-1")
    assert first.task_id.removesuffix("-0") == second.task_id.removesuffix("-1")
    assert pair.first.rewards == [1, -1]
    with together(pair.a, pair.b, group_id="g", task_id="name") as team:
        team.reward([1, 1])
    assert [server.episodes[-1].group_id for server in (pair.first, pair.second)] == ["g", "g"]
    assert [server.episodes[-1].task_id for server in (pair.first, pair.second)] == ["name", "name"]


def test_a_task_for_each_server(pair: Pair) -> None:
    with together(pair.a, pair.b, tasks=["plan", "do"], kind="eval") as team:
        assert [episode.task for episode in team] == ["plan", "do"]
        team.reward([1, 1])
    assert [server.episodes[0].task for server in (pair.first, pair.second)] == ["plan", "do"]
    assert pair.first.episodes[0].kind == "eval"


def test_what_cannot_be(pair: Pair) -> None:
    async_swarm = AsyncSwarm("http://x.invalid")
    with pytest.raises(RequestError, match="at least 2 servers, got 1"):
        together(pair.a)
    with pytest.raises(RequestError, match="got AsyncSwarm, Swarm"):
        together(pair.a, async_swarm)  # type: ignore[call-overload]
    with pytest.raises(RequestError, match="want 2, one for each server"), together(pair.a, pair.b, tasks=["x"]):
        raise AssertionError
    with pytest.raises(RequestError, match="no effect on run"):
        together(pair.a, pair.b, task="t").run(lambda team: [1, 1], ["t"])
    for wrong in ([1], 1.0):
        with pytest.raises(RequestError, match="want 2 rewards"), together(pair.a, pair.b) as team:
            team.reward(wrong)
    asyncio.run(async_swarm.close())


def job(group_size: int) -> Job:
    return Job(model=ModelConfig(path="m"), batch=BatchConfig(group_size=group_size))


def test_a_run_keeps_groups_in_line(pair: Pair) -> None:
    pair.first.job = pair.second.job = job(4)
    report = together(pair.a, pair.b).run(lambda team: (0.0, 1.0), ["x", "y"], progress=False, concurrency=3)
    assert (report.finished, report.failed, report.reward_mean) == (8, 0, 0.5)
    assert report.metric_means == {"0.reward": 0.0, "1.reward": 1.0}
    groups = [sorted(episode.group_id for episode in server.episodes) for server in (pair.first, pair.second)]
    assert groups[0] == groups[1]
    assert len(set(groups[0])) == 2


def test_a_run_tries_again_on_all_servers(pair: Pair) -> None:
    tries = iter(range(9))

    def agent(team: Any) -> None:
        number = next(tries)
        team[0].reward(1)
        if number == 0:
            raise ValueError("a mistake")
        if number == 1:
            pair.second.refuse("prepare", ConflictError("no call"))
        team[1].reward(2)

    report = together(pair.a, pair.b).run(agent, ["x"], progress=False, group_size=1, kind="eval")
    assert (report.finished, report.attempts) == (1, 3)
    assert pair.statuses == [[ABORTED, ABORTED, FINISHED]] * 2


def test_a_run_that_is_stopped_aborts_all(pair: Pair) -> None:
    def agent(team: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        together(pair.a, pair.b).run(agent, ["x"], progress=False)
    assert pair.statuses == [[ABORTED], [ABORTED]]


def test_a_run_wants_one_size_of_groups(pair: Pair) -> None:
    pair.first.job, pair.second.job = job(4), job(8)
    with pytest.raises(RequestError, match="compare groups of 4, 8"):
        together(pair.a, pair.b).run(lambda team: (1, 1), ["x"], progress=False)


def test_a_run_brings_later_what_it_could_not_tell(pair: Pair) -> None:
    pair.second.refuse("decide", ForbiddenError("for once"))
    pair.first.refuse("finish", StorageError("for once"))
    told: list[int] = []

    def agent(team: Any) -> tuple[int, int]:
        told.append(pair.second.requests.count("unions"))
        return 1, 1

    report = together(pair.a, pair.b).run(agent, ["x", "y", "z"], concurrency=1, progress=False, kind="eval")
    assert (report.finished, report.attempts) == (3, 4)
    assert told == [1, 2, 3, 3]
    assert pair.second.episodes[0].status is OPEN, "undecided: its fellow may still be finished, or expire"
    assert [episode.status for episode in pair.second.episodes[1:]] == [FINISHED] * 3


def test_a_run_of_roles_wants_updates_that_teams_can_complete(pair: Pair) -> None:
    pair.first.job = Job(model=ModelConfig(path="m"), batch=BatchConfig(group_size=4, size=3))
    with pytest.raises(RequestError, match="an update takes 3 groups") as caught:
        together(pair.a, pair.a).run(lambda team: (1, -1), ["x"], progress=False)
    assert caught.value.field == "batch.size"
    pair.first.job = Job(model=ModelConfig(path="m"), batch=BatchConfig(group_size=4, size=2))
    report = together(pair.a, pair.a).run(lambda team: (1, -1), ["x"], progress=False)
    assert (report.finished, report.reward_mean) == (4, 0)
    assert len({episode.group_id for episode in pair.first.episodes}) == 2


def test_with_asyncio(pair: Pair) -> None:
    async def main() -> None:
        clock = FakeClock()
        a = AsyncSwarm(pair.first.url, transport=pair.first.transport(), clock=clock)
        b = AsyncSwarm(pair.second.url, transport=pair.second.transport(), clock=clock)
        async with a, b:
            async with together(a, b, task="t") as (planner, executor):
                planner.reward(1)
                executor.reward(2)
            assert pair.statuses == [[FINISHED], [FINISHED]]
            with pytest.raises(ValueError, match="mine"):
                async with together(a, b):
                    raise ValueError("mine")
            with pytest.warns(RuntimeWarning, match="without a reward") as warned:
                async with together(a, b):
                    pass
            assert warned[0].filename == __file__
            async with together(a, b) as team:
                await team.abort("enough")
            assert pair.statuses == [[FINISHED] + [ABORTED] * 3] * 2

            async def agent(team: Any) -> list[float]:
                return [1, 0]

            report = await together(a, b).run(agent, ["x", "y"], progress=False)
            assert (report.finished, report.reward_mean) == (2, 0.5)
            assert str(await resolve(a, b)) == "0 committed, 0 aborted, 0 undecided"

    asyncio.run(main())


def test_a_cancellation_aborts_all(pair: Pair) -> None:
    async def main() -> None:
        a = AsyncSwarm(pair.first.url, transport=pair.first.transport())
        b = AsyncSwarm(pair.second.url, transport=pair.second.transport())

        async def work() -> None:
            async with together(a, b):
                await asyncio.Event().wait()

        async with a, b:
            task = asyncio.create_task(work())
            while not pair.second.episodes and not task.done():
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert pair.statuses == [[ABORTED], [ABORTED]]
