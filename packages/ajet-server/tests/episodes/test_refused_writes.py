"""Whatever the disk refuses, and whenever: what is in memory is what a restart would find, and trying again helps."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from book_helpers import KEYS, Book, admit

from ajet_core.config import BatchConfig, LimitsConfig
from ajet_core.episode import EpisodeKind, EpisodeStatus
from ajet_core.errors import StorageError
from ajet_core.ids import digest_secret
from ajet_core.wire import Decides, Decision, FinishEpisode, Follows, OpenEpisode, PrepareEpisode, Readiness
from ajet_server.capture.ledger import Ledger
from ajet_server.capture.records import EpisodeRecord
from ajet_server.episodes.agreeing import agree
from ajet_server.episodes.deciding import decide
from ajet_server.episodes.lifecycle import Episodes
from ajet_server.episodes.pool import Pool
from ajet_server.episodes.versions import NamedVersions
from ajet_server.observe.bus import EventLog

pytestmark = pytest.mark.anyio
COMMIT, ABORT = "c" * 43, "a" * 43
FOLLOWS = Follows(decider="http://a", commit_digest=digest_secret(COMMIT), abort_digest=digest_secret(ABORT))
DECIDES = Decides(commit_secret=COMMIT, abort_secret=ABORT)


class Refusing(Ledger):
    """A ledger whose disk refuses one write."""

    refused: int | None = None
    """How many writes go well before."""

    async def write(self, statement: Callable[[sqlite3.Connection], Any], then: Any = None) -> Any:
        number, self.refused = self.refused, None if self.refused is None else self.refused - 1
        return await super().write(_refused(statement) if number == 0 else statement, then)


def _refused(statement: Callable[[sqlite3.Connection], Any]) -> Callable[[sqlite3.Connection], None]:
    def run(db: sqlite3.Connection) -> None:
        statement(db)
        raise sqlite3.OperationalError("the disk refuses")

    return run


def restored(file: Path) -> Book:
    ledger = Refusing(file)
    pool = Pool(BatchConfig(policy="any_client", group_size=2, max_staleness=1), quiet_s=1e9)
    episodes = Episodes(ledger, pool, KEYS, EventLog(ledger), LimitsConfig(), NamedVersions(file.parent, 1))
    episodes.restore()
    return Book(ledger, pool, episodes)


def memory(book: Book) -> dict[str, Any]:
    """All that outlives a restart."""
    episodes, pool = book.episodes, book.pool
    return {
        "open": {s.record.id: (s.record, s.promise, s.recorded, s.oldest_version) for s in episodes._open.states},
        "rows": pool.rows,
        "groups": {group.id: (group.open, group.finished) for group in pool.groups},
        "ready": pool.agreement().ready,
        "named": episodes.versions._episodes,
        "being written": episodes._opener._being_written.total(),
    }


Action = Callable[[Book, str], Awaitable[Any]]


async def _open(book: Book, _: str) -> None:
    body = OpenEpisode(request_id="again", task="t", client_id="cli")
    await book.episodes.open(body, lambda: 0, admit)


async def _open_named(book: Book, _: str) -> None:
    body = OpenEpisode(request_id="again", task="t", kind=EpisodeKind.EVAL, weights=0)
    await book.episodes.open(body, lambda: 0, admit)


async def _finish(book: Book, name: str) -> None:
    await book.episodes.finish(name, FinishEpisode(reward=1.0))


async def _abort(book: Book, name: str) -> None:
    await book.episodes.lose(name, EpisodeStatus.ABORTED, "enough")


async def _promise(book: Book, name: str) -> None:
    await book.episodes.prepare(name, PrepareEpisode(reward=1.0, union_id="un_1", part=FOLLOWS))


async def _decide(book: Book, name: str) -> None:
    if book.episodes.unions.followed() == [] and book.episodes.view(name).status is EpisodeStatus.OPEN:
        await _promise(book, name)
    await decide(book.episodes, "un_1", Decision(secret=COMMIT))


async def _commit(book: Book, name: str) -> None:
    if book.episodes._open.get(name) is not None:
        await book.episodes.prepare(name, PrepareEpisode(reward=1.0, union_id="un_1", part=DECIDES))
    await _finish(book, name)


async def _set_aside(book: Book, name: str) -> None:
    if book.episodes._open.get(name) is not None:
        await _finish(book, name)
    await book.episodes.set_aside_unusable(5)


async def _agree(book: Book, _: str) -> None:
    body = Readiness(client_id="cli", ready=True)
    await agree(body, book.pool, book.episodes.changes, book.episodes._events)


ACTIONS = (_open, _open_named, _finish, _abort, _promise, _decide, _commit, _set_aside, _agree)


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    book = restored(tmp_path / "l")
    yield book
    book.ledger.close()


def _same_as_on_disk(book: Book) -> None:
    again = restored(book.ledger.file)
    again.pool.weight_version = book.pool.weight_version
    try:
        assert memory(book) == memory(again)
    finally:
        again.ledger.close()


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("act", ACTIONS)
async def test_a_write_that_is_refused(book: Book, act: Action, number: int) -> None:
    record = await _rollout(book)
    assert isinstance(book.ledger, Refusing)
    book.ledger.refused = number
    with contextlib.suppress(StorageError):
        await act(book, record.id)
        assert number, "the first write of each was refused"
    _same_as_on_disk(book)
    book.ledger.refused = None
    await act(book, record.id)
    _same_as_on_disk(book)


@pytest.mark.parametrize("turns", range(12))
@pytest.mark.parametrize("act", ACTIONS)
async def test_a_caller_that_leaves(book: Book, act: Action, turns: int) -> None:
    record = await _rollout(book)
    task = asyncio.create_task(act(book, record.id))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    _same_as_on_disk(book)
    await act(book, record.id)
    _same_as_on_disk(book)


async def _rollout(book: Book) -> EpisodeRecord:
    record = await book.open("1", task="t", client_id="cli")
    await book.call(record)
    return record
