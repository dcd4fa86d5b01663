"""A ledger replayed under the policy that it was recorded with gives the batches that were made."""

import asyncio
import importlib
import itertools
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from call_helpers import make_call
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ajet_core.config import Job
from ajet_core.episode import EpisodeKind, EpisodeStatus
from ajet_core.errors import UnavailableError
from ajet_core.events import EngineState, StateChanged
from ajet_core.wire import FinishEpisode, OpenEpisode, Readiness
from ajet_server.capture import steps
from ajet_server.capture.calls import insert_calls
from ajet_server.capture.history import Bound, Called, Closed, History, Opened, read_history
from ajet_server.capture.ledger import Ledger
from ajet_server.capture.readiness import Said
from ajet_server.capture.records import EpisodeRecord, PoolRow
from ajet_server.episodes.agreeing import agree
from ajet_server.episodes.keys import KeyMaker
from ajet_server.episodes.lifecycle import Episodes
from ajet_server.episodes.pool import Pool
from ajet_server.episodes.replay import replay
from ajet_server.episodes.versions import NamedVersions
from ajet_server.observe.bus import EventLog

_CLOCKED = ("pool", "book", "opening", "agreeing", "lifecycle")
_CLOCKED_LEDGER = ("capture.records", "capture.calls", "capture.steps", "observe.bus")


class _Clock:
    """Both clocks, moved by the test."""

    now = 1e6

    def time(self) -> float:
        return self.now

    monotonic = time


@contextmanager
def _clock() -> Generator[_Clock]:
    clock = _Clock()
    modules = [f"ajet_server.episodes.{name}" for name in _CLOCKED] + [
        f"ajet_server.{name}" for name in _CLOCKED_LEDGER
    ]
    patches = [patch.object(importlib.import_module(name), "time", clock) for name in modules]
    for one in patches:
        one.start()
    try:
        yield clock
    finally:
        for one in patches:
            one.stop()


class _Live:
    """A server without an engine: the conductor's loop in the test's time, looking on twice a second."""

    def __init__(self, file: Path, job: Job, clock: _Clock) -> None:
        self.job = job
        self.clock = clock
        self.ledger = Ledger(file)
        self.pool = Pool(job.batch, quiet_s=job.limits.lease_s)
        self.events = EventLog(self.ledger)
        self.episodes = Episodes(
            self.ledger, self.pool, KeyMaker(b"k" * 32), self.events, job.limits, NamedVersions(file.parent, 1)
        )
        self.open: dict[str, EpisodeRecord] = {}
        self.batches: list[tuple[str, ...]] = []
        self.drain_until: float | None = None
        self._ids = itertools.count()

    def admit(self, _: EpisodeKind) -> None:
        if self.drain_until is not None:
            raise UnavailableError("draining")

    async def act(self, act: tuple[str, str, int]) -> None:
        what, client, number = act
        match what:
            case "open":
                await self._open(client, f"task{number % 3}")
            case "finish" if self.open:
                await self._finish(list(self.open)[number % len(self.open)], reward=float(number % 2))
            case "abort" if self.open:
                lost = list(self.open)[number % len(self.open)]
                del self.open[lost]
                await self.episodes.lose(lost, EpisodeStatus.ABORTED, "the test")
            case "ready" | "unready" if self.job.batch.asks_clients:
                body = Readiness(client_id=client, ready=what == "ready")
                await agree(body, self.pool, self.episodes.changes, self.events)
            case _:
                pass

    async def _open(self, client: str, task: str) -> None:
        body = OpenEpisode(request_id=str(next(self._ids)), task=task, client_id=client, source=client)
        try:
            record = await self.episodes.open(body, lambda: len(self.batches), self.admit)
        except UnavailableError:
            return
        self.open[record.id] = record
        version = len(self.batches)
        call = make_call(f"{record.id}/0", record.id, 0, weight_version=version)
        await self.ledger.write(lambda db: insert_calls(db, [call]))
        state = self.episodes._open.get(record.id)
        assert state is not None
        state.recorded, state.oldest_version = 1, version

    async def _finish(self, episode_id: str, reward: float) -> None:
        del self.open[episode_id]
        await self.episodes.finish(episode_id, FinishEpisode(reward=reward))

    async def look(self) -> None:
        while True:
            if self.drain_until is None:
                if not self.pool.decision().ready:
                    return
                self.drain_until = self.clock.now + self.job.limits.drain_timeout_s
            if self.open and self.clock.now < self.drain_until:
                return
            self.drain_until = None
            await self._update()

    async def _update(self) -> None:
        await self.episodes.set_aside_unusable(len(self.batches))
        take = self.pool.decision().take
        if not take:
            return
        self.pool.begin_update()
        planned = steps.PlannedBatch(f"b{len(self.batches)}", len(self.batches) + 1)
        await self.ledger.write(lambda db: steps.plan_batch(db, planned, list(take)))
        self.pool.take(take)
        self.batches.append(take)
        await self.episodes.set_aside_unusable(len(self.batches))

    async def tick(self) -> None:
        await self.episodes.expire_silent()
        self.open = {name: record for name, record in self.open.items() if self.episodes.view(name).status == "open"}
        await self.look()


async def _record(live: _Live, acts: list[tuple[int, tuple[str, str, int]]]) -> None:
    for pause, act in acts:
        for _ in range(pause):
            live.clock.now += 0.5  # between two acts, where no two of them can be in either order
            await live.tick()
            live.clock.now += 0.5
        await live.act(act)
        await live.look()
        await live.episodes.set_aside_unusable(len(live.batches))  # the janitor
    at_last = StateChanged(state=EngineState.OFFLINE, cause="the test", step=0, weight_version=0)
    await live.events.emit(at_last)  # as a server that is stopped does


_POLICIES: list[dict[str, Any]] = [
    {"policy": "episodes", "size": 3},
    {"policy": "groups", "size": 2},
    {"policy": "informative_groups", "size": 1},
    {"policy": "episodes", "size": 3, "sources": {"a": 0.7, "b": 0.3}},
    {"policy": "groups", "size": 2, "sources": {"a": 0.5, "b": 0.5}},
    {"policy": "informative_groups", "size": 3, "sources": {"b": 0.4, "a": 0.6}},
    {"policy": "any_client"},
    {"policy": "all_clients"},
    {"policy": "all_clients", "size": 3, "when": "all_clients or waited > 8s"},
    {"policy": "groups", "size": 3, "when": "groups >= 3 or waited > 6s"},
    {"policy": "informative_groups", "size": 2, "when": "informative_groups >= 2 and staleness <= 0 or groups >= 5"},
    {"policy": "episodes", "size": 4, "when": "episodes >= 4 or episodes >= 2 and ready_clients >= 2"},
]
_ACTS = ["open", "open", "open", "finish", "finish", "finish", "abort", "ready", "unready"]
_acts = st.lists(
    st.tuples(st.integers(1, 4), st.tuples(st.sampled_from(_ACTS), st.sampled_from("ab"), st.integers(0, 20))),
    min_size=20,
    max_size=60,
)


def _job(**batch: Any) -> Job:
    limits = {"lease_s": 12, "drain_timeout_s": 5, "max_episode_s": 40}
    return Job.model_validate({"model": {"path": "m"}, "batch": {"group_size": 2, **batch}, "limits": limits})


# Not shrunk: each example writes a ledger.
@settings(
    max_examples=40,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.sampled_from(_POLICIES), _acts)
def test_a_replay_makes_the_batches_that_the_server_made(
    batch: dict[str, Any], acts: list[tuple[int, tuple[str, str, int]]]
) -> None:
    job = _job(**batch)
    with tempfile.TemporaryDirectory() as folder, _clock() as clock:
        live = _Live(Path(folder) / "ledger", job, clock)
        asyncio.run(_record(live, acts))
        history = live.ledger.read_now(read_history)
        said = live.pool.decision().waiting_for
        live.ledger.close()
    found = replay(history, job)
    assert [update.episode_ids for update in found.updates] == live.batches
    assert [set(bound.episode_ids) for bound in history.batches] == [set(take) for take in live.batches]
    assert all(update.due_at <= update.at <= update.due_at + 5 for update in found.updates)
    if live.drain_until is None:
        assert found.left.waiting_for == said


def _history(*episodes: tuple[str, str, float, float, float], said: tuple[Said, ...] = ()) -> History:
    """Of (id, group, opened at, closed at, reward)."""
    found: list[Opened | Called | Closed | Said] = [*said]
    for name, group, opened_at, closed_at, reward in episodes:
        row = PoolRow(name, group, False, "t", reward, 0, "c", closed_at)
        found += [Opened(opened_at, name, "c"), Called(opened_at, name), Closed(closed_at, name, row)]
    return History(tuple(sorted(found, key=lambda one: one.at)), (Bound(0.0, ()),), 1000.0)


def test_time_alone_makes_an_update_due() -> None:
    history = _history(("1", "g", 0, 10, 1), ("2", "g", 0, 20, 0), ("3", "h", 0, 500, 0))
    (update,) = replay(history, _job(size=2, when="groups >= 2 or waited > 1m")).updates
    assert (update.episode_ids, round(update.due_at), update.groups) == (("1", "2"), 80, 1)
    assert update.at == update.due_at + 5, "the open episode is waited for until drain_timeout_s"


def test_nothing_is_waited_for_where_rolling_goes_on_during_updates() -> None:
    history = _history(("1", "g", 0, 10, 1), ("2", "g", 0, 20, 0), ("3", "h", 0, 500, 0))
    job = _job(size=1)
    (drained,) = replay(history, job).updates
    engine = job.engine.model_copy(update={"during_update": "finish"})
    (update,) = replay(history, job.model_copy(update={"engine": engine})).updates
    assert (drained.at - drained.due_at, update.at - update.due_at) == (5, 0)


def test_what_other_updates_make_stale_is_not_taken() -> None:
    """Opened before all updates, finished after two of them."""
    quick = [(f"q{number}", f"g{number}", 10.0 * number, 10.0 * number + 1, 1.0) for number in range(2)]
    job = _job(policy="episodes", size=1, max_staleness=1)
    (*_, last) = replay(_history(("slow", "s", 0, 50, 1), *quick), job).updates
    assert last.episode_ids == ("q1",)
    assert len(replay(_history(("slow", "s", 0, 50, 1), *quick[:1]), job).updates) == 2


def test_the_first_call_decides_how_old_an_episode_is() -> None:
    """Opened before all updates, but what it sampled is of the weights after them."""
    quick = [(f"q{number}", f"g{number}", 10.0 * number, 10.0 * number + 1, 1.0) for number in range(2)]
    history = _history(("slow", "s", 0, 50, 1), *quick)
    late = tuple(
        Called(40.0, "slow") if isinstance(one, Called) and one.episode_id == "slow" else one
        for one in history.occurrences
    )
    history = History(tuple(sorted(late, key=lambda one: one.at)), history.batches, history.end)
    (*_, last) = replay(history, _job(policy="episodes", size=1, max_staleness=1)).updates
    assert last.episode_ids == ("slow",)


def test_a_client_that_fell_silent_is_no_longer_waited_for() -> None:
    history = _history(("1", "g", 0, 10, 1), ("2", "g", 0, 10, 0), said=(Said("other", True, 11),))
    (update,) = replay(history, _job(policy="all_clients")).updates
    assert round(update.due_at, 1) == 22.0, "a lease after it finished its last episode"


def test_an_empty_ledger() -> None:
    found = replay(History((), (), 0.0), _job())
    assert (found.updates, found.left.waiting_for) == ((), "0 of 4 groups complete")
