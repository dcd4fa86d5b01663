"""The ledger: one SQLite file in WAL mode, one writer thread, group commit.

Contract 2: `write` returns only after its transaction is on disk (`synchronous = FULL`), so what was acknowledged
survives `kill -9` and a power cut. Writes that wait at the same moment share one commit, so a thousand episodes
that finish together cost a few fsyncs. The queue is bounded: a slow disk slows callers down, not memory up.
"""

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self, TypeVar

from ajet_core.errors import AjetError, StorageError

from ajet_server.capture.schema import migrate

T = TypeVar("T")
Statement = Callable[[sqlite3.Connection], T]
"""Runs in the ledger's thread, inside a transaction."""

_MAX_WAITING = 1024
_MAX_GROUP = 256


class Ledger:
    """Opens the ledger file and owns its writer thread.

    Raises:
        StorageError: the file is corrupted, not a ledger, or of a newer schema. It is left as it is.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._queue: queue.SimpleQueue[tuple[Statement[Any], Future[Any]] | None] = queue.SimpleQueue()
        self._slots = asyncio.Semaphore(_MAX_WAITING)
        self._reader_lock = threading.Lock()
        self._writer = _connect(file)
        try:
            _check(self._writer, file)
            migrate(self._writer)
        except sqlite3.DatabaseError as error:
            self._writer.close()
            raise _corrupted(file, error) from error
        except BaseException:
            self._writer.close()
            raise
        self._reader = _connect(file)
        self._thread = threading.Thread(target=self._write_loop, name="ledger-writer", daemon=True)
        self._thread.start()

    @property
    def file(self) -> Path:
        """The SQLite file."""
        return self._file

    async def write(self, statement: Statement[T]) -> T:
        """Runs `statement` in the writer thread and returns its result once it is durable.

        A statement that raises is rolled back alone; others of the same commit are not touched by it.

        Raises:
            StorageError: the disk refused (full, read-only, failing); nothing of the statement was kept.
        """
        async with self._slots:
            future: Future[T] = Future()
            self._queue.put((statement, future))
            # Shielded: a caller that is cancelled must not tear a statement out of the group it commits with.
            return await asyncio.shield(asyncio.wrap_future(future))

    def write_now(self, statement: Statement[T]) -> T:
        """The same, blocking: for start-up."""
        future: Future[T] = Future()
        self._queue.put((statement, future))
        return future.result()

    async def read(self, statement: Statement[T]) -> T:
        """Runs a query in a thread, on a connection that sees every durable write."""
        return await asyncio.to_thread(self.read_now, statement)

    def read_now(self, statement: Statement[T]) -> T:
        """The same, blocking: for start-up and for small look-ups by key."""
        with self._reader_lock:
            return statement(self._reader)

    def close(self) -> None:
        """Commits what waits and closes the file."""
        self._queue.put(None)
        self._thread.join()
        self._writer.close()
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_loop(self) -> None:
        closing = False
        while not closing:
            first = self._queue.get()
            if first is None:
                return
            group = [first]
            while len(group) < _MAX_GROUP and not self._queue.empty():
                item = self._queue.get()
                if item is None:
                    closing = True
                    break
                group.append(item)
            self._commit(group)

    def _commit(self, group: list[tuple[Statement[Any], Future[Any]]]) -> None:
        outcomes: list[tuple[Future[Any], Any, Exception | None]] = []
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            outcomes = [(future, *_run(self._writer, statement)) for statement, future in group]
            self._writer.execute("COMMIT")
        except sqlite3.Error as error:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            failure = StorageError(f"the ledger {self._file} could not be written: {error}; nothing was recorded")
            outcomes = [(future, None, failure) for _, future in group]
        for future, result, problem in outcomes:
            if problem is not None:
                future.set_exception(problem)
            else:
                future.set_result(result)


def _run(connection: sqlite3.Connection, statement: Statement[Any]) -> tuple[Any, Exception | None]:
    connection.execute("SAVEPOINT one")
    try:
        result = statement(connection)
    except (AjetError, sqlite3.IntegrityError) as error:
        connection.execute("ROLLBACK TO one")
        connection.execute("RELEASE one")
        return None, error
    connection.execute("RELEASE one")
    return result, None


def _connect(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False, timeout=30)
    connection.row_factory = sqlite3.Row
    return connection


def _check(connection: sqlite3.Connection, file: Path) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    problem = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    if problem != "ok":
        raise _corrupted(file, problem)


def _corrupted(file: Path, problem: object) -> StorageError:
    return StorageError(
        f"the ledger {file} is corrupted ({problem}); it was not changed. Restore it from a copy, or start with another "
        "data folder"
    )
