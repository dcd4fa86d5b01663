"""Unions: whatever crashes, and whenever, their episodes are all finished or none is."""

import asyncio
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from book_helpers import KEYS, Book, open_book, outcomes
from call_helpers import make_call
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ajet_core.episode import EpisodeStatus
from ajet_core.errors import (
    ConflictError,
    EpisodeClosedError,
    ForbiddenError,
    NotFoundError,
    StorageError,
    UnavailableError,
)
from ajet_core.ids import digest_secret, new_secret
from ajet_core.wire import Decides, Decision, FinishEpisode, Follows, PrepareEpisode, UnionState
from ajet_server.capture.calls import insert_calls
from ajet_server.capture.records import EpisodeRecord
from ajet_server.episodes.deciding import decide, settle

pytestmark = pytest.mark.anyio
OPEN, FINISHED = EpisodeStatus.OPEN, EpisodeStatus.FINISHED
ABORTED, EXPIRED = EpisodeStatus.ABORTED, EpisodeStatus.EXPIRED
COMMIT, ABORT = new_secret(), new_secret()


def body(*, decides: bool, reward: float = 1.0, union_id: str = "un_1", **fields: Any) -> PrepareEpisode:
    follows = Follows(decider="http://a", commit_digest=digest_secret(COMMIT), abort_digest=digest_secret(ABORT))
    part = Decides(commit_secret=COMMIT, abort_secret=ABORT) if decides else follows
    return PrepareEpisode(reward=reward, union_id=union_id, part=part, **fields)


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    book = open_book(tmp_path / "l")
    yield book
    book.ledger.close()


async def prepared(book: Book, *, decides: bool = False, request_id: str = "1", **fields: Any) -> EpisodeRecord:
    record = await book.open(request_id, **({"task": "t"} | fields))
    await book.call(record)
    await book.episodes.prepare(record.id, body(decides=decides))
    return record


async def test_a_follower_waits_for_the_secret(book: Book) -> None:
    record = await prepared(book)
    view = book.episodes.view(record.id)
    assert (view.status, view.reward, view.union_id) == (OPEN, None, "un_1")
    assert book.pool.rows == []
    for attempt in (book.finish(record), book.episodes.lose(record.id, ABORTED, "alone")):
        with pytest.raises(ConflictError, match="which http://a decides"):
            await attempt
    with pytest.raises(ForbiddenError, match="proves no decision"):
        await decide(book.episodes, "un_1", Decision(secret=new_secret()))
    with pytest.raises(NotFoundError):
        await decide(book.episodes, "un_2", Decision(secret=COMMIT))
    for _ in range(2):
        (view,) = await decide(book.episodes, "un_1", Decision(secret=COMMIT))
        assert (view.status, view.reward) == (FINISHED, 1.0)
    assert [row.episode_id for row in book.pool.rows] == [record.id]
    (view,) = await decide(book.episodes, "un_1", Decision(secret=ABORT))
    assert view.status is FINISHED, "what is decided stays decided"


async def test_a_follower_is_aborted_by_the_other_secret(book: Book) -> None:
    record = await prepared(book)
    (view,) = await decide(book.episodes, "un_1", Decision(secret=ABORT))
    assert (view.status, view.reason) == (ABORTED, "union un_1 was aborted")
    assert book.pool.groups == []
    with pytest.raises(EpisodeClosedError):
        await book.episodes.prepare(record.id, body(decides=False))


async def test_a_follower_does_not_expire_and_is_in_doubt(book: Book) -> None:
    record = await prepared(book)
    assert book.episodes.unions.followed(only_in_doubt=True) == []
    assert book.episodes.open_train_count == 1
    state = book.state(record.id)
    state.lease_until = state.expires_at = 0
    assert await book.episodes.expire_silent() == 0
    await settle(book.episodes)
    (union,) = book.episodes.unions.followed(only_in_doubt=True)
    assert (union.union_id, union.decider, union.episode_ids) == ("un_1", "http://a", [record.id])
    assert (book.episodes.open_count, book.episodes.open_train_count) == (1, 0), "no drain waits for it"


async def test_nobody_waits_for_a_group_in_doubt(book: Book) -> None:
    record = await prepared(book, group_id="mine")
    await book.open("2", task="other")
    await book.open("3", task="other")
    with pytest.raises(UnavailableError, match="all under way"):
        await book.open("4", task="third")
    book.state(record.id).lease_until = 0
    await settle(book.episodes)
    await book.open("4", task="third")
    await decide(book.episodes, "un_1", Decision(secret=COMMIT))
    assert [row.episode_id for row in book.pool.rows] == [record.id]


async def test_the_deciding_one_reveals_one_secret(book: Book) -> None:
    record = await prepared(book, decides=True)
    view = book.episodes.unions.view("un_1")
    assert (view.state, view.secret) == (UnionState.UNDECIDED, None)
    with pytest.raises(ConflictError, match="is prepared with reward 1") as caught:
        await book.finish(record, 2.0)
    assert caught.value.field == "reward"
    await book.finish(record)
    view = book.episodes.unions.view("un_1")
    assert (view.state, view.secret) == (UnionState.COMMITTED, COMMIT)
    with pytest.raises(NotFoundError):
        book.episodes.unions.view("un_2")


@pytest.mark.parametrize("status", [ABORTED, EXPIRED])
async def test_the_deciding_one_may_be_lost(book: Book, status: EpisodeStatus) -> None:
    record = await prepared(book, decides=True)
    if status is EXPIRED:
        book.state(record.id).lease_until = 0
        assert await book.episodes.expire_silent() == 1
    else:
        await book.episodes.lose(record.id, ABORTED, "the test")
    view = book.episodes.unions.view("un_1")
    assert (view.state, view.secret) == (UnionState.ABORTED, ABORT)
    with pytest.raises(EpisodeClosedError):
        await book.finish(record)


async def test_what_cannot_be_prepared(book: Book) -> None:
    record = await book.open("1", task="t")
    with pytest.raises(ConflictError, match="made no call"):
        await book.episodes.prepare(record.id, body(decides=False))
    await book.call(record)
    book.state(record.id).in_flight = 1
    with pytest.raises(UnavailableError, match="still running"):
        await book.episodes.prepare(record.id, body(decides=False))
    book.state(record.id).in_flight = 0
    for _ in range(2):
        await book.episodes.prepare(record.id, body(decides=True, metrics={"m": 1.0}))
    for other in (body(decides=False), body(decides=True), body(decides=True, reward=2.0, metrics={"m": 1.0})):
        with pytest.raises(ConflictError, match="with other values"):
            await book.episodes.prepare(record.id, other)
    second = await book.open("2", kind="eval")
    with pytest.raises(ConflictError, match="decides for un_1 already"):
        await book.episodes.prepare(second.id, body(decides=True))
    await book.call(second)  # it is as open as before
    with pytest.raises(NotFoundError):
        await book.episodes.prepare("ep_nobody", body(decides=True))


async def test_a_prepared_episode_takes_no_calls(book: Book) -> None:
    record = await prepared(book)
    with pytest.raises(EpisodeClosedError, match="takes no more calls"):
        book.episodes.agent(KEYS.key(record.attempt_id, "agent"))
    late = make_call("late", record.id, 99)
    with pytest.raises(EpisodeClosedError, match="prepared for a union"):
        await book.ledger.write(lambda db: insert_calls(db, [late]))


async def test_a_disk_that_refuses_leaves_the_episode_open(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(_: object) -> None:
        raise StorageError("disk full")

    record = await book.open("1", task="t")
    await book.call(record)
    with monkeypatch.context() as patched:
        patched.setattr(book.ledger, "write", full)
        with pytest.raises(StorageError):
            await book.episodes.prepare(record.id, body(decides=False))
    await book.call(record)
    await book.finish(record)


async def test_a_union_within_one_server_needs_no_messenger(book: Book) -> None:
    white = await prepared(book, decides=True, group_id="white")
    black = await prepared(book, request_id="2", group_id="black")
    await settle(book.episodes)
    assert book.episodes.view(black.id).status is OPEN
    await book.finish(white)
    await settle(book.episodes)
    assert book.episodes.view(black.id).status is FINISHED


async def test_an_operator_may_give_a_follower_up(book: Book) -> None:
    record = await prepared(book)
    view = await book.episodes.lose(record.id, ABORTED, "its decider is lost", decided=True)
    assert view.status is ABORTED
    (view,) = await decide(book.episodes, "un_1", Decision(secret=COMMIT))
    assert view.status is ABORTED


class World:
    """One union, its client, three servers, and whatever may happen to them.

    Args:
        folder: of the ledgers.
        places: which server each episode is of. The first decides.
        kind: of the episodes.
    """

    def __init__(self, folder: Path, places: list[int], kind: str) -> None:
        self.folder, self.places, self.kind = folder, places, kind
        self.books = [open_book(folder / f"{number}") for number in range(3)]
        self.records: list[EpisodeRecord] = []
        self.done = 0
        self.alive = True
        self.committed = False

    async def open(self) -> None:
        for number, book in enumerate(self._books):
            record = await book.open(f"{number}", task="t", kind=self.kind, group_id=f"{number}")
            await book.call(record)
            self.records.append(record)

    @property
    def _books(self) -> list[Book]:
        """The server of each episode."""
        return [self.books[place] for place in self.places]

    @property
    def statuses(self) -> list[EpisodeStatus]:
        pairs = zip(self._books, self.records, strict=True)
        return [book.episodes.view(record.id).status for book, record in pairs]

    async def client(self, _: int) -> None:
        """The client's next step: prepare each, finish the deciding one, tell the others. Until then trouble aborts."""
        if not self.alive or self.done >= 2 * len(self.records):
            return
        telling, number = divmod(self.done, len(self.records))
        try:
            await (self._tell(number) if telling else self._prepare(number))
        except EpisodeClosedError:
            assert not self.committed, "a commit is refused by nobody"
            await self.abort(0)
            return
        self.done += 1
        self.committed = self.committed or bool(telling)

    async def _prepare(self, number: int) -> None:
        given = body(decides=number == 0, reward=float(number))
        await self._books[number].episodes.prepare(self.records[number].id, given)

    async def _tell(self, number: int) -> None:
        episodes = self._books[number].episodes
        if number == 0:
            await episodes.finish(self.records[0].id, FinishEpisode(reward=0.0))
        else:
            await decide(episodes, "un_1", Decision(secret=COMMIT))

    async def abort(self, _: int) -> None:
        """The client gives up, unless it has told the deciding server to finish."""
        if not self.alive or self.committed:
            return
        self.alive = False
        for book, record in zip(self._books, self.records, strict=True):
            try:
                await book.episodes.lose(record.id, ABORTED, "the client")
            except ConflictError:
                await decide(book.episodes, "un_1", Decision(secret=ABORT))

    async def die(self, _: int) -> None:
        self.alive = False

    async def decide_alone(self, number: int) -> None:
        """A prepared follower believes nobody who has no secret."""
        number = number % len(self.records)
        episodes, record = self._books[number].episodes, self.records[number]
        if number == 0 or number >= self.done:
            return
        before = episodes.view(record.id)
        finish = episodes.finish(record.id, FinishEpisode(reward=float(number)))
        await outcomes(finish, episodes.lose(record.id, EXPIRED, "the test"))
        assert episodes.view(record.id) == before

    async def restart(self, server: int) -> None:
        self.books[server].ledger.close()
        self.books[server] = open_book(self.folder / f"{server}")

    async def expire(self, server: int) -> None:
        for state in self.books[server].episodes._open.states:
            state.lease_until = state.expires_at = 0
        await self.books[server].episodes.expire_silent()
        await settle(self.books[server].episodes)

    async def carry(self, _: int) -> None:
        """A messenger goes between all servers."""
        for source, target in itertools.product(self.books, self.books):
            for union in target.episodes.unions.followed():
                view = source.episodes.unions._view(union.union_id)
                if view is not None and view.secret is not None:
                    await decide(target.episodes, union.union_id, Decision(secret=view.secret))

    def check(self) -> None:
        statuses = self.statuses
        assert not (FINISHED in statuses and {ABORTED, EXPIRED} & set(statuses)), statuses
        assert FINISHED not in statuses[1:] or statuses[0] is FINISHED, "the first decides"
        assert not self.committed or statuses[0] is FINISHED, "what was acknowledged is kept"
        for book in self.books:
            for row in book.pool.rows:
                assert book.episodes.view(row.episode_id).status is FINISHED
                assert row.reward == float(row.group_id)

    async def end(self) -> None:
        """Everybody falls silent, a messenger makes the round, and the union is whole."""
        for server in range(3):
            await self.expire(server)
        await self.carry(0)
        statuses = self.statuses
        assert OPEN not in statuses
        assert all(status is FINISHED for status in statuses) or FINISHED not in statuses


_WHAT_HAPPENS = (
    ["client"] * 6 + ["carry"] * 2 + ["expire", "expire", "restart", "restart", "abort", "die", "decide_alone"]
)


@given(
    places=st.sampled_from([[0, 1], [0, 1, 2], [1, 0, 0], [0, 0], [2, 2, 1]]),
    kind=st.sampled_from(["train", "eval"]),
    what=st.lists(st.tuples(st.sampled_from(_WHAT_HAPPENS), st.integers(0, 2)), max_size=14),
)
@example([0, 1], "train", [("client", 0)] * 3 + [("restart", 1), ("expire", 1)])
@example([0, 1], "train", [("client", 0)] * 2 + [("restart", 0), ("expire", 0), ("client", 0), ("carry", 0)])
@settings(max_examples=100, deadline=None)
def test_whatever_happens_all_are_finished_or_none(places: list[int], kind: str, what: list[tuple[str, int]]) -> None:
    async def happen() -> None:
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder), places, kind)
            await world.open()
            for name, number in what:
                await getattr(world, name)(number)
                world.check()
            await world.end()
            for book in world.books:
                book.ledger.close()

    asyncio.run(happen())
