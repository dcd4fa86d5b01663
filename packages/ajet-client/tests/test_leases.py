# ruff: noqa: PT012 - what must raise here are whole `with` blocks
import asyncio
import json
import threading
from collections.abc import Callable

import pytest

from ajet_client import AsyncSwarm, Swarm
from ajet_client.api import Api
from ajet_client.episode import EpisodeBase
from ajet_client.leases import LeaseBook
from ajet_client.plans import Broken, Pause, Plan, Reply
from ajet_client.testing import FakeClock, FakeServer
from ajet_core.episode import EpisodeStatus
from ajet_core.errors import (
    AjetError,
    ConflictError,
    EpisodeClosedError,
    ForbiddenError,
    KeyRefusedError,
    NotFoundError,
    to_wire,
)
from ajet_core.wire import EpisodeGrant


def new_episode(api: Api, name: str, lease_s: float = 30.0) -> EpisodeBase:
    grant = EpisodeGrant(
        episode_id=name,
        attempt_id="a",
        group_id="g",
        kind="train",  # type: ignore[arg-type]
        base_url="http://x/v1",
        api_key="k",
        control_key="c",
        model="m",
        weight_version=0,
        lease_s=lease_s,
    )
    return EpisodeBase(api, grant, None)


def answer(plan: Plan[None], outcome: Reply | Broken) -> None:
    assert not isinstance(next(plan), Pause)
    with pytest.raises(StopIteration):
        plan.send(outcome)


@pytest.fixture
def api(clock: FakeClock) -> Api:
    return Api(None, None, 1.0, 1.0, clock)


def test_an_episode_is_due_three_times_per_lease(api: Api, clock: FakeClock) -> None:
    book, episode = LeaseBook(api), new_episode(api, "a")
    book.add(episode)
    assert book.delay_s(episode) == 10.0
    clock.time = 10.0
    answer(book.beat(episode), Reply(200, b'{"episode_id": "a", "lease_s": 60}'))
    assert book.delay_s(episode) == 20.0


def test_ever_shorter_leases_are_not_chased(api: Api, clock: FakeClock) -> None:
    book, episode = LeaseBook(api), new_episode(api, "a")
    book.add(episode)
    answer(book.beat(episode), Reply(200, b'{"episode_id": "a", "lease_s": 0.01}'))
    assert book.delay_s(episode) == 1.0


def test_the_first_due_comes_first(api: Api) -> None:
    book = LeaseBook(api)
    slow, quick = new_episode(api, "slow", 60), new_episode(api, "quick", 6)
    book.add(slow)
    book.add(quick)
    assert book.first() is quick
    book.drop(quick)
    book.drop(quick)
    assert book.first() is slow


@pytest.mark.parametrize("outcome", [Broken("cut"), Reply(503), Reply(500)], ids=repr)
def test_trouble_defers_everybody_a_little(api: Api, clock: FakeClock, outcome: Reply | Broken) -> None:
    book, episodes = LeaseBook(api), [new_episode(api, name) for name in "ab"]
    for episode in episodes:
        book.add(episode)
    clock.time = 10.0
    answer(book.beat(episodes[0]), outcome)
    assert [book.delay_s(episode) for episode in episodes] == [5.0, 5.0]


@pytest.mark.parametrize("kind", [KeyRefusedError, ForbiddenError, NotFoundError, ConflictError, EpisodeClosedError])
def test_a_refusal_loses_the_episode(api: Api, kind: type[AjetError]) -> None:
    refusal = Reply(kind.status, json.dumps(to_wire(kind("it is over"))).encode())
    book, episode = LeaseBook(api), new_episode(api, "a")
    book.add(episode)
    answer(book.beat(episode), refusal)
    assert book.first() is None
    with pytest.raises(EpisodeClosedError, match="the server has closed episode a: it is over"):
        episode.reward(1.0)


def test_an_episode_closed_meanwhile_is_not_renewed_again(api: Api) -> None:
    book, episode = LeaseBook(api), new_episode(api, "a")
    book.add(episode)
    beat = book.beat(episode)
    next(beat)
    book.drop(episode)
    with pytest.raises(StopIteration):
        beat.send(Reply(200, b'{"episode_id": "a", "lease_s": 60}'))
    assert book.first() is None


OVER = Reply(410, json.dumps(to_wire(EpisodeClosedError("it is finished"))).encode())


class Interrupted(FakeClock):
    """Does something else in the middle of whoever asks for the time."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] | None = None

    def now(self) -> float:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return self.time


def test_an_episode_closed_while_its_next_heartbeat_is_reckoned_is_not_renewed_again() -> None:
    clock = Interrupted()
    api = Api(None, None, 1.0, 1.0, clock)
    book, episode = LeaseBook(api), new_episode(api, "a")
    book.add(episode)
    beat = book.beat(episode)
    next(beat)
    clock.meanwhile = lambda: book.drop(episode)
    with pytest.raises(StopIteration):
        beat.send(Reply(200, b'{"episode_id": "a", "lease_s": 60}'))
    assert clock.meanwhile is None
    assert book.first() is None


def test_the_book_changes_under_its_lock(api: Api) -> None:
    class Watched(dict[EpisodeBase, float]):
        def __setitem__(self, key: EpisodeBase, value: float) -> None:
            assert book._lock.locked()
            super().__setitem__(key, value)

        def pop(self, *arguments: object) -> object:
            assert book._lock.locked()
            return super().pop(*arguments)  # type: ignore[call-overload]

    book, episode = LeaseBook(api), new_episode(api, "a")
    book._due = Watched()
    book.add(episode)
    answer(book.beat(episode), Reply(200, b'{"episode_id": "a", "lease_s": 60}'))
    answer(book.beat(episode), Broken("cut"))
    answer(book.beat(episode), OVER)
    assert book._due == {}


def view(status: str) -> Reply:
    body = dict.fromkeys(("attempt_id", "group_id", "task_id", "client_id"), "x")
    numbers = dict.fromkeys(("calls", "prompt_tokens", "completion_tokens", "weight_version"), 0)
    rest = {"episode_id": "a", "kind": "train", "metrics": {}, "reason": None, "batch_id": None, "reward": None}
    return Reply(200, json.dumps({**body, **numbers, **rest, "status": status}).encode())


@pytest.mark.parametrize("late", [True, False])
def test_a_heartbeat_that_is_refused_because_the_episode_was_finished_changes_nothing(api: Api, late: bool) -> None:
    book, episode = LeaseBook(api), new_episode(api, "a")
    book.add(episode)
    episode.reward(1.0)
    beat, settle = book.beat(episode), episode.settle()
    next(beat)
    next(settle)  # both requests are on their way, and the server takes the reward first
    steps = [(settle, view("finished")), (beat, OVER)]
    for plan, reply in steps if late else reversed(steps):
        with pytest.raises(StopIteration):
            plan.send(reply)
    assert episode.status == "finished"
    assert episode.view is not None
    assert book.first() is None


def test_a_heartbeat_that_is_refused_because_the_episode_was_aborted_changes_nothing(api: Api) -> None:
    book, episode = LeaseBook(api), new_episode(api, "a")
    book.add(episode)
    beat = book.beat(episode)
    next(beat)
    answer(episode.give_up("enough"), view("aborted"))
    with pytest.raises(StopIteration):
        beat.send(OVER)
    assert episode.status == "aborted"
    with pytest.raises(EpisodeClosedError, match="is aborted; it takes no reward"):
        episode.reward(1.0)


def test_an_episode_is_aborted_once(api: Api) -> None:
    episode = new_episode(api, "a")
    first, second = episode.give_up("one"), episode.give_up("two")
    next(first)
    with pytest.raises(StopIteration):
        next(second)


def test_a_reward_that_comes_after_the_server_closed_the_episode_is_refused_in_its_words(api: Api) -> None:
    book, episode = LeaseBook(api), new_episode(api, "a")
    book.add(episode)
    episode.reward(1.0)
    beat, settle = book.beat(episode), episode.settle()
    next(beat)
    next(settle)
    with pytest.raises(StopIteration):
        beat.send(OVER)
    with pytest.raises(EpisodeClosedError, match="the server has closed episode a: it is finished"):
        settle.send(OVER)
    assert episode.status == "expired"


def test_a_closed_swarm_renews_nothing() -> None:
    server = FakeServer()
    swarm = Swarm(server.url, transport=server.transport())
    with swarm.episode() as episode:
        swarm.close()
        for thread in heartbeat_threads():
            thread.join(5)
        assert heartbeat_threads() == []
        episode._status = EpisodeStatus.ABORTED  # nothing is to be sent any more


def heartbeat_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ajet-heartbeats"]


def test_heartbeats_go_on_during_a_long_body() -> None:
    with FakeServer(lease_s=0.06).serve() as server, Swarm(server.url) as swarm:
        with swarm.episode() as episode:
            assert server.wait_for("heartbeat", 5)
            episode.reward(1)
        for thread in heartbeat_threads():
            thread.join(5)
        assert heartbeat_threads() == []
        with swarm.episode() as episode:  # the thread begins again
            assert server.wait_for("heartbeat", server.requests.count("heartbeat") + 2)
            episode.reward(1)


def test_one_thread_serves_all_episodes() -> None:
    server = FakeServer(lease_s=0.06)
    with Swarm(server.url, transport=server.transport()) as swarm, swarm.episode() as one, swarm.episode() as two:
        assert server.wait_for("heartbeat", 6)
        assert len(heartbeat_threads()) == 1
        assert all(episode.heartbeats for episode in server.episodes)
        one.reward(1)
        two.reward(2)


def test_heartbeats_survive_trouble() -> None:
    server = FakeServer(lease_s=0.06)
    server.fail("heartbeat", times=2)
    server.cut("heartbeat", times=2)
    with Swarm(server.url, transport=server.transport()) as swarm, swarm.episode() as episode:
        assert server.wait_for("heartbeat", 6)
        episode.reward(1)
    assert server.rewards == [1.0]


def test_a_refused_heartbeat_is_known_in_the_body() -> None:
    server = FakeServer(lease_s=0.06)
    with (
        Swarm(server.url, transport=server.transport()) as swarm,
        pytest.raises(EpisodeClosedError, match="went quiet"),
        swarm.episode() as episode,
    ):
        server.close_episode(episode.id, "went quiet")
        assert server.wait_for("heartbeat", 1)
        for thread in heartbeat_threads():
            thread.join(5)
        episode.reward(1)
    assert "finish" not in server.requests


def test_an_error_in_the_body_of_a_lost_episode_is_told_why() -> None:
    server = FakeServer(lease_s=0.06)
    with (
        Swarm(server.url, transport=server.transport()) as swarm,
        pytest.raises(ConnectionError) as caught,
        swarm.episode() as episode,
    ):
        server.close_episode(episode.id, "went quiet")
        assert server.wait_for("heartbeat", 1)
        for thread in heartbeat_threads():
            thread.join(5)
        raise ConnectionError("401 from the model")
    assert "went quiet" in caught.value.__notes__[0]
    assert "abort" not in server.requests


def test_heartbeats_of_an_async_swarm() -> None:
    server = FakeServer(lease_s=0.06)

    async def main() -> None:
        async with AsyncSwarm(server.url, transport=server.transport()) as swarm:
            for count in (3, 6):
                async with swarm.episode() as episode:
                    assert await asyncio.to_thread(server.wait_for, "heartbeat", count)
                    episode.reward(1)
            server.fail("heartbeat")
            with pytest.raises(EpisodeClosedError, match="went quiet"):
                async with swarm.episode() as episode:
                    assert await asyncio.to_thread(server.wait_for, "heartbeat", 9)
                    server.close_episode(episode.id, "went quiet")
                    while episode.status == "open":  # until the next heartbeat is refused
                        await asyncio.sleep(0)
                    episode.reward(1)

    asyncio.run(main())
