"""Contracts 2 and 3: open -> finished | aborted | expired, each durable, repeatable and fenced."""

import asyncio
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest
from book_helpers import KEYS, Book, open_book, outcomes
from call_helpers import make_call
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, precondition, rule

from ajet_core.episode import EpisodeKind, EpisodeStatus
from ajet_core.errors import (
    AjetError,
    ConflictError,
    EpisodeClosedError,
    KeyRefusedError,
    NotFoundError,
    StorageError,
    UnavailableError,
)
from ajet_core.wire import FinishEpisode
from ajet_server.capture import records
from ajet_server.capture.calls import insert_calls
from ajet_server.capture.records import EpisodeRecord

pytestmark = pytest.mark.anyio
ABORTED, EXPIRED, FINISHED = EpisodeStatus.ABORTED, EpisodeStatus.EXPIRED, EpisodeStatus.FINISHED


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    book = open_book(tmp_path / "l")
    yield book
    book.ledger.close()


async def test_fifty_times_the_same_request_is_one_episode(book: Book) -> None:
    opened = await asyncio.gather(*(book.open("same", task="t") for _ in range(50)))
    assert len({record.id for record in opened}) == 1
    assert book.episodes.open_count == 1
    assert (await book.open("same", task="t")).id == opened[0].id


async def test_of_finish_and_abort_exactly_one_wins(book: Book) -> None:
    for number in range(10):
        record = await book.open(str(number), kind="eval")
        jobs: list[Awaitable[Any]] = [
            book.finish(record),
            book.episodes.lose(record.id, ABORTED, "the race"),
            book.episodes.lose(record.id, EXPIRED, "the race"),
            book.finish(record),
        ]
        results = await outcomes(*(jobs if number % 2 else reversed(jobs)))
        finished = [result for result in results if getattr(result, "status", None) is FINISHED]
        lost = [result for result in results if getattr(result, "status", None) in (ABORTED, EXPIRED)]
        refused = [result for result in results if isinstance(result, EpisodeClosedError)]
        assert sorted([len(finished), len(lost)]) == [0, 2]
        assert len(refused) == 2


async def test_different_rewards_at_once(book: Book) -> None:
    record = await book.open("one", task="t")
    await book.call(record)
    results = await outcomes(*(book.finish(record, reward / 10) for reward in range(10)))
    views = [result for result in results if not isinstance(result, AjetError)]
    assert len(views) == 1
    assert book.episodes.view(record.id).reward == views[0].reward
    assert len(book.pool.rows) == 1


async def test_one_slot_is_refilled(book: Book) -> None:
    first, second = await book.open("1", task="t"), await book.open("2", task="t")
    assert first.group_id == second.group_id
    await book.episodes.lose(first.id, ABORTED, "the test")
    third = await book.open("3", task="t")
    assert third.group_id == second.group_id, "the one slot, not the group"
    assert (await book.open("4", task="t")).group_id != second.group_id


async def test_no_more_than_the_next_batch_is_handed_out(book: Book) -> None:
    for number in range(4):
        await book.open(str(number), task="t")
    with pytest.raises(UnavailableError, match=r"all under way \(2 of 2\); waiting for: 0 of 2 groups complete"):
        await book.open("5", task="t")


async def test_concurrent_openings_keep_the_bound(tmp_path: Path) -> None:
    book = open_book(tmp_path / "l", max_open_episodes=10)
    results = await outcomes(*(book.open(str(number), kind="eval") for number in range(20)))
    assert book.episodes.open_count == 5
    refusals = [result for result in results if isinstance(result, UnavailableError)]
    assert len(refusals) == 15
    assert refusals[0].retry_after_s == 1
    book.ledger.close()


async def test_a_flood_of_evaluations_leaves_room_for_training(tmp_path: Path) -> None:
    book = open_book(tmp_path / "l", max_open_episodes=4)
    results = await outcomes(*(book.open(str(number), kind="eval") for number in range(20)))
    refusals = [result for result in results if isinstance(result, UnavailableError)]
    assert len(refusals) == 18
    assert "half of limits.max_open_episodes=4" in refusals[0].message
    for number in range(2):
        await book.open(f"train {number}")
    with pytest.raises(UnavailableError, match="4 episodes are open"):
        await book.open("too many")
    book.ledger.close()


async def test_a_client_with_many_waiting_openings_starves_no_other(tmp_path: Path) -> None:
    book = open_book(tmp_path / "l", max_open_episodes=8)

    def wait(client: str, number: int) -> asyncio.Task[EpisodeRecord]:
        body = {"kind": "eval", "client_id": client, "wait_s": 60}
        return asyncio.create_task(book.open(f"{client} {number}", **body))

    greedy = [wait("greedy", number) for number in range(100)]
    while sum(task.done() for task in greedy) < 4:
        await asyncio.sleep(0)
    modest = [wait("modest", number) for number in range(3)]
    for _ in range(10):
        await asyncio.sleep(0)
    got: list[str] = []
    for _ in range(6):
        oldest = next(task for task in greedy if task.done())
        greedy.remove(oldest)
        before = [task for task in [*greedy, *modest] if not task.done()]
        await book.finish(oldest.result())
        done, _ = await asyncio.wait(before, return_when=asyncio.FIRST_COMPLETED, timeout=20)
        got += [task.result().client_id for task in done]
    assert got == ["modest", "modest", "greedy", "greedy", "greedy", "greedy"]
    assert sum(task.done() for task in modest) == 2, "each holds half"
    for task in [*greedy, *modest]:
        task.cancel()
    await asyncio.gather(*greedy, *modest, return_exceptions=True)
    assert not book.episodes._opener._line._tickets
    book.ledger.close()


async def test_a_slot_of_a_client_that_leaves_is_free_again(tmp_path: Path) -> None:
    book = open_book(tmp_path / "l", max_open_episodes=2)
    opener = book.episodes._opener
    first = await book.open("1", kind="eval")
    leaving = asyncio.create_task(book.open("2", kind="eval", wait_s=60))
    while not opener._line._tickets:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    (ticket,) = opener._line._tickets
    book.episodes._open.drop(book.state(first.id))
    opener._line.look(ticket, 1_000_000)  # somebody else looks, and this one gets the slot
    assert ticket.record is not None
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert leaving.cancelled()
    assert not opener._line._tickets
    await book.open("3", kind="eval")
    book.ledger.close()


async def test_groups_that_the_client_names(book: Book) -> None:
    await book.open("1", task="t", group_id="mine")
    await book.open("2", task="t", group_id="mine")
    with pytest.raises(ConflictError, match="has all its 2 episodes") as caught:
        await book.open("3", task="t", group_id="mine")
    assert caught.value.field == "group_id"
    with pytest.raises(ConflictError, match="belongs to task"):
        await book.open("4", task="other", group_id="mine")
    assert (await book.open("5", task="t")).group_id != "mine"


async def test_what_cannot_be_finished(book: Book) -> None:
    record = await book.open("1", task="t")
    with pytest.raises(ConflictError, match="made no call"):
        await book.finish(record)
    book.episodes.agent(KEYS.key(record.attempt_id, "agent")).in_flight = 2
    with pytest.raises(UnavailableError, match=r"has 2 call\(s\) still running") as caught:
        await book.finish(record)
    assert caught.value.retry_after_s == 1
    with pytest.raises(NotFoundError):
        await book.episodes.finish("ep_nobody", FinishEpisode(reward=1.0))


async def test_keys(book: Book) -> None:
    record = await book.open("1", task="t")
    other = await book.open("2", task="t")
    agent, control = KEYS.key(record.attempt_id, "agent"), KEYS.key(record.attempt_id, "control")
    book.episodes.check_control(record.id, control)
    for key in (agent, KEYS.key(other.attempt_id, "control"), ""):
        with pytest.raises(KeyRefusedError):
            book.episodes.check_control(record.id, key)
    with pytest.raises(NotFoundError):
        book.episodes.check_control("ep_nobody", control)
    with pytest.raises(KeyRefusedError):
        book.episodes.agent(control)
    await book.episodes.lose(record.id, ABORTED, "the test")
    with pytest.raises(EpisodeClosedError, match="aborted"):
        book.episodes.agent(agent)
    with pytest.raises(EpisodeClosedError):
        book.episodes.heartbeat(record.id)


async def test_a_cancelled_opening_leaves_no_ghost(book: Book) -> None:
    task = asyncio.create_task(book.open("1", task="t"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    in_ledger = book.ledger.read_now(records.open_episodes)
    assert book.episodes.open_count == len(in_ledger)
    assert sum(group.size for group in book.pool.groups) == len(in_ledger)
    await book.open("1", task="t")
    assert book.episodes.open_count == 1


async def test_a_cancelled_finish_keeps_memory_and_disk_together(book: Book) -> None:
    record = await book.open("1", task="t")
    await book.call(record)
    task = asyncio.create_task(book.finish(record))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await outcomes(task)
    finished = book.episodes.view(record.id).status is FINISHED
    assert len(book.pool.rows) == finished
    assert book.episodes.open_count == (not finished)
    assert (await book.finish(record)).reward == 1.0


async def test_a_disk_that_refuses_changes_nothing(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: object) -> None:
        raise StorageError("disk full")

    record = await book.open("1", task="t")
    await book.call(record)
    with monkeypatch.context() as patched:
        patched.setattr(book.ledger, "write", full)
        for job in (book.finish(record), book.open("2", task="t"), book.episodes.lose(record.id, ABORTED, "x")):
            with pytest.raises(StorageError):
                await job
    assert book.episodes.open_count == 1
    assert sum(group.size for group in book.pool.groups) == 1
    await book.finish(record)


async def test_expiry_spares_those_renewed_or_finished_meanwhile(tmp_path: Path) -> None:
    book = open_book(tmp_path / "l", lease_s=60)
    silent, renewed, finished, busy = [await book.open(str(n), kind="eval") for n in range(4)]
    for record in (silent, renewed, finished, busy):
        book.state(record.id).lease_until = 0
    book.state(busy.id).in_flight = 1
    expiring = asyncio.create_task(book.episodes.expire_silent())
    await asyncio.sleep(0)
    book.episodes.heartbeat(renewed.id)
    await book.finish(finished)
    assert await expiring == 1
    statuses = [book.episodes.view(record.id).status for record in (silent, renewed, finished, busy)]
    assert statuses == [EXPIRED, "open", FINISHED, "open"]
    book.ledger.close()


async def test_even_the_lively_expire_in_the_end(book: Book) -> None:
    record = await book.open("1", kind="eval")
    state = book.state(record.id)
    state.expires_at, state.in_flight = 0, 1
    assert book.episodes.heartbeat(record.id) < 0
    await book.episodes.expire_silent()
    assert "limits.max_episode_s" in (book.episodes.view(record.id).reason or "")


async def test_calls_before_a_restart_count(tmp_path: Path) -> None:
    book = open_book(tmp_path / "l")
    record = await book.open("1", task="t")
    await book.call(record, version=0)
    book.episodes.agent(KEYS.key(record.attempt_id, "agent")).next_seq += 1  # of a call that failed
    await book.call(record, version=1)
    book.ledger.close()
    again = open_book(tmp_path / "l")
    await again.call(record, version=2)
    await again.finish(record)
    assert [row.oldest_version for row in again.pool.rows] == [0]
    assert again.pool.rows == again.ledger.read_now(records.pool_rows)
    again.ledger.close()


async def test_a_thousand_at_once(tmp_path: Path) -> None:
    book = open_book(tmp_path / "l", max_open_episodes=2000)

    async def one(number: int) -> None:
        record = await book.open(str(number), kind="eval")
        await book.call(record)
        await book.finish(record)

    await asyncio.gather(*(one(number) for number in range(1000)))
    finished = book.ledger.read_now(
        lambda db: db.execute("SELECT count(*) FROM episodes WHERE status = 'finished'").fetchone()[0]
    )
    assert finished == 1000
    assert book.episodes.open_count == 0
    assert (len(book.episodes._open), book.episodes._opener._opening, book.pool.groups) == (0, {}, [])
    book.ledger.close()


class Life(RuleBasedStateMachine):
    """Clients that open, call, close and repeat themselves, and a server that is restarted in between."""

    opened = Bundle("opened")

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.book = self.runner.run(self._opened())
        self.grants: dict[str, EpisodeRecord] = {}
        self.status: dict[str, tuple[EpisodeStatus, float | None]] = {}
        self.calls: dict[str, int] = {}

    async def _opened(self) -> Book:
        return open_book(Path(self.folder.name) / "l")

    def teardown(self) -> None:
        self.book.ledger.close()
        self.runner.close()
        self.folder.cleanup()

    def attempt(self, job: Awaitable[Any]) -> Any:
        async def run() -> Any:
            return await job

        try:
            return self.runner.run(run())
        except AjetError as error:
            return error

    @rule(
        target=opened,
        request=st.sampled_from("abcdefghij"),
        task=st.sampled_from(["x", "y", "z"]),
        kind=st.sampled_from(["train", "train", "train", "eval"]),
        group=st.sampled_from([None, None, "mine"]),
    )
    def open(self, request: str, task: str, kind: str, group: str | None) -> Any:
        result = self.attempt(self.book.open(request, task=task, kind=kind, group_id=group))
        known = self.grants.get(request)
        if known is None and isinstance(result, EpisodeRecord):
            self.grants[request] = result
            self.status[result.id], self.calls[result.id] = (EpisodeStatus.OPEN, None), 0
            return result
        if known is not None and self.status[known.id][0] is EpisodeStatus.OPEN:
            assert result == known, "the same request, the same grant"
        else:
            assert isinstance(result, ConflictError | UnavailableError)
        return multiple()

    @rule(record=opened)
    def call(self, record: EpisodeRecord) -> None:
        result = self.attempt(self.book.call(record))
        if self.status[record.id][0] is EpisodeStatus.OPEN:
            assert result is None
            self.calls[record.id] += 1
        else:
            assert isinstance(result, EpisodeClosedError), "closed keys are refused"

    @rule(record=opened, reward=st.sampled_from([0.0, 1.0]))
    def finish(self, record: EpisodeRecord, reward: float) -> None:
        result = self.attempt(self.book.finish(record, reward))
        status, before = self.status[record.id]
        if status is EpisodeStatus.OPEN and (self.calls[record.id] or record.kind is EpisodeKind.EVAL):
            assert (result.status, result.reward) == (FINISHED, reward)
            self.status[record.id] = (FINISHED, reward)
        elif status is EpisodeStatus.OPEN:
            assert isinstance(result, ConflictError)
        elif status is FINISHED and before == reward:
            assert result == self.book.episodes.view(record.id), "a repeat gets the same answer"
        else:
            assert isinstance(result, EpisodeClosedError)

    @rule(record=opened, status=st.sampled_from([ABORTED, EXPIRED]))
    def lose(self, record: EpisodeRecord, status: EpisodeStatus) -> None:
        result = self.attempt(self.book.episodes.lose(record.id, status, "the test"))
        before = self.status[record.id][0]
        if before is FINISHED:
            assert isinstance(result, EpisodeClosedError)
            return
        if before is EpisodeStatus.OPEN:
            self.status[record.id] = (status, None)
        assert result.status is self.status[record.id][0]

    @rule(record=opened)
    def expire(self, record: EpisodeRecord) -> None:
        state = self.book.episodes._open.get(record.id)
        if state is None:
            return
        state.lease_until = 0
        assert self.attempt(self.book.episodes.expire_silent()) == 1
        self.status[record.id] = (EXPIRED, None)

    @rule(record=opened)
    def late_call(self, record: EpisodeRecord) -> None:
        """A result that comes back after the episode closed, past the key check."""
        if self.status[record.id][0] is EpisodeStatus.OPEN:
            return
        late = make_call(f"late/{record.id}", record.id, 99)
        result = self.attempt(self.book.ledger.write(lambda db: insert_calls(db, [late])))
        assert isinstance(result, EpisodeClosedError)

    @precondition(lambda self: self.grants)
    @rule()
    def restart(self) -> None:
        self.book.ledger.close()
        self.book = self.runner.run(self._opened())

    @invariant()
    def groups_are_never_over_full(self) -> None:
        sizes = {group.id: group.size for group in self.book.pool.groups}
        assert all(size <= 2 for size in sizes.values())
        held = [
            record.group_id
            for record in self.grants.values()
            if record.kind is EpisodeKind.TRAIN and self.status[record.id][0] in (EpisodeStatus.OPEN, FINISHED)
        ]
        assert sizes == {group: held.count(group) for group in held}

    @invariant()
    def nothing_acknowledged_is_lost(self) -> None:
        views = {record.id: self.book.episodes.view(record.id) for record in self.grants.values()}
        assert {name: (view.status, view.reward) for name, view in views.items()} == self.status
        assert {name: view.calls for name, view in views.items()} == self.calls

    @invariant()
    def memory_equals_the_ledger(self) -> None:
        assert self.book.pool.rows == self.book.ledger.read_now(records.pool_rows)
        in_ledger = self.book.ledger.read_now(records.open_episodes)
        states = {state.record.id: state for state in self.book.episodes._open.states}
        assert {record.id for record, _ in in_ledger} == set(states)
        for record, so_far in in_ledger:
            state = states[record.id]
            assert (state.record, state.recorded, state.next_seq) == (record, so_far.count, so_far.next_seq)
            assert state.oldest_version == so_far.oldest_version


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=50, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


async def test_what_is_finished_too_old_while_others_are_set_aside_is_set_aside_too(book: Book) -> None:
    first, second = [await book.open(str(n), task="t") for n in range(2)]
    for record in (first, second):
        await book.call(record)
    await book.finish(first)
    setting_aside = asyncio.create_task(book.episodes.set_aside_unusable(9))
    await asyncio.sleep(0)
    await book.finish(second)
    assert await setting_aside == 2
    assert book.pool.rows == []


async def test_a_slot_that_the_disk_refused_goes_to_who_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book, gate = open_book(tmp_path / "l", max_open_episodes=1), asyncio.Event()

    async def full(*_: object) -> None:
        await gate.wait()
        raise StorageError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(book.ledger, "write", full)
        first = asyncio.create_task(book.open("1", task="t"))
        await asyncio.sleep(0)
        second = asyncio.create_task(book.open("2", task="t", wait_s=60.0))
        await asyncio.sleep(0)
    gate.set()
    with pytest.raises(StorageError):
        await first
    done, _ = await asyncio.wait({second}, timeout=10)
    assert done
    assert book.episodes.open_count == 1
    book.ledger.close()
