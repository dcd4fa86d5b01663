"""The ledger: one SQLite file in WAL mode, one writer thread, group commit.

Contract 2: `write` returns only after its transaction is on disk (`synchronous = FULL`), so what was acknowledged
survives `kill -9` and a power cut. Writes that wait at the same moment share one commit, so a thousand episodes
that finish together cost a few fsyncs. The queue is bounded: a slow disk slows callers down, not memory up.
"""

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self, TypeVar

from ajet_core.errors import DiskFullError, StorageError
from ajet_server.capture.connections import check, connect, open_writer
from ajet_server.capture.writes import Bulk, Outcome, Part, Statement, Write, joined, tell

T = TypeVar("T")

_MAX_WAITING = 1024
_MAX_GROUP = 256
_NO_ROOM = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})
"""How SQLite says that the disk is full; the second is how it takes a used up quota."""
_RETRY_S = 5.0


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Awaits `work` to its end even if the caller is cancelled meanwhile; the cancellation follows then.

    For a write and the change in memory that mirrors it: one without the other would leave them apart.
    """
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


class Ledger:
    """Opens the ledger file and owns its writer thread.

    Raises:
        StorageError: the file is corrupted, not a ledger, or of a newer schema. It is left as it is.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._queue: queue.SimpleQueue[Write | None] = queue.SimpleQueue()
        self._slots = asyncio.Semaphore(_MAX_WAITING)
        self._closing = threading.Lock()
        self._closed = False
        try:
            check(file)
            self._writer = open_writer(file)
        except (sqlite3.Error, OSError) as error:
            raise StorageError(f"the ledger {file} cannot be used: {error}") from error
        self._quick, self._reader = _Reader(file), _Reader(file)
        self._thread = threading.Thread(target=self._write_loop, name="ledger-writer", daemon=True)
        self._thread.start()

    @property
    def file(self) -> Path:
        """The SQLite file."""
        return self._file

    async def write(self, statement: Statement[T], then: Callable[[T], None] | None = None) -> T:
        """Runs `statement` in the writer thread and returns its result once it is durable.

        A statement that raises is rolled back alone; others of the same commit are not touched by it.

        Args:
            statement: to run.
            then: makes the change in memory that mirrors it. It is called as soon as the statement is durable, even if
                the caller was cancelled; such a cancellation follows after it.

        Raises:
            DiskFullError: the disk has no room; nothing of the statement was kept.
            StorageError: the disk refused (read-only, failing); nothing of the statement was kept.
        """
        async with self._slots:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[T] = loop.create_future()
            write = Write(statement, future, then)
            self._enqueue(write)
            try:
                return await future
            except asyncio.CancelledError:  # the caller gives up waiting only; the statement is written
                if then is not None and not write.settled:
                    write.future = again = loop.create_future()
                    await asyncio.wait({again})
                    again.exception()  # looked at, for nobody else does
                raise

    def write_now(self, statement: Statement[T]) -> T:
        """The same, blocking: for start-up."""
        future: Future[T] = Future()
        self._enqueue(Write(statement, future))
        return future.result()

    async def read(self, statement: Statement[T]) -> T:
        """Runs a query in a thread, on a connection that sees every durable write.

        Raises:
            StorageError: the file cannot be read.
        """
        return await asyncio.to_thread(self._reader.run, statement)

    def read_now(self, statement: Statement[T]) -> T:
        """The same, blocking: for start-up and for small look-ups by key. It never waits for a `read`."""
        return self._quick.run(statement)

    def close(self) -> None:
        """Commits what waits and closes the file. Again is harmless."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        self._thread.join()
        self._writer.close()
        self._quick.close()
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _enqueue(self, write: Write) -> None:
        with self._closing:
            if self._closed:
                raise StorageError(f"the ledger {self._file} is closed; nothing was recorded")
            self._queue.put(write)

    def _write_loop(self) -> None:
        while self._write_group():
            pass

    def _write_group(self) -> bool:
        """Writes what waits, or comes next; nothing of it is held afterwards. Returns whether there is more to come."""
        first, closing = self._queue.get(), False
        if first is None:
            return False
        group = [first]
        while len(group) < _MAX_GROUP and not self._queue.empty():
            item = self._queue.get()
            if item is None:
                closing = True
                break
            group.append(item)
        self._commit(group)
        return not closing

    def _commit(self, group: list[Write]) -> None:
        try:
            outcomes = self._as_one(group) or self._in_transaction(group)
        except sqlite3.Error as error:
            self._roll_back()
            failure = self._refusal(error)
            outcomes = [(write, None, failure) for write in group]
        tell(outcomes)

    def _as_one(self, group: list[Write]) -> list[Outcome] | None:
        """Runs a group that is one SQL statement, which SQLite commits by itself; None if it is not, or was refused.

        After each statement this thread has to get Python's lock back from the event loop, which costs both of them
        more than the statement does.
        """
        parts = joined(group)
        statement, _ = parts[0]
        if self._writer.in_transaction:  # one that could not be undone: in it, nothing would be durable
            return None
        if len(parts) > 1 or not isinstance(statement, Bulk) or not statement.is_one_statement:
            return None
        return self._unless_refused(parts)

    def _in_transaction(self, group: list[Write]) -> list[Outcome]:
        outcomes = self._try_all(group) or self._try_each(group)
        self._writer.execute("COMMIT")
        return outcomes

    def _try_all(self, group: list[Write]) -> list[Outcome] | None:
        """Runs all statements at the price of none that fails; None if one does, and then nothing was done."""
        self._writer.execute("BEGIN IMMEDIATE")
        outcomes = self._unless_refused(joined(group))
        if outcomes is None:
            self._writer.execute("ROLLBACK")
        return outcomes

    def _unless_refused(self, parts: list[Part]) -> list[Outcome] | None:
        outcomes: list[Outcome] = []
        try:
            for statement, writes in parts:
                result = statement(self._writer)
                outcomes += [(write, result, None) for write in writes]
        except sqlite3.OperationalError:
            raise  # the disk, not the statement
        except Exception:  # noqa: BLE001 - they begin again, each by itself
            return None
        return outcomes

    def _try_each(self, group: list[Write]) -> list[Outcome]:
        self._writer.execute("BEGIN IMMEDIATE")
        return [(write, *_run(self._writer, write.statement)) for write in group]

    def _refusal(self, error: sqlite3.Error) -> StorageError:
        message = f"the ledger {self._file} could not be written: {error}; nothing was recorded"
        # Errors of the driver itself carry no code.
        if getattr(error, "sqlite_errorcode", None) in _NO_ROOM:
            return DiskFullError(f"the disk is full: {message}", retry_after_s=_RETRY_S)
        return StorageError(message)

    def _roll_back(self) -> None:
        if self._writer.in_transaction:
            # A disk that fails at this too leaves a transaction that the next BEGIN stumbles over, and undoes.
            with contextlib.suppress(sqlite3.Error):
                self._writer.execute("ROLLBACK")


def _run(connection: sqlite3.Connection, statement: Statement[Any]) -> tuple[Any, Exception | None]:
    connection.execute("SAVEPOINT one")
    try:
        result = statement(connection)
    except sqlite3.OperationalError:
        raise  # the disk, not the statement
    except Exception as error:  # noqa: BLE001 - the thread's boundary: it goes to whoever sent the statement
        connection.execute("ROLLBACK TO one")
        connection.execute("RELEASE one")
        return None, error
    connection.execute("RELEASE one")
    return result, None


def peek(file: Path, statement: Statement[T]) -> T:
    """Runs one query on a ledger that need not be open here, and cannot change it. Raises `StorageError`."""
    try:
        with contextlib.closing(connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            return statement(connection)
    except sqlite3.Error as error:
        raise StorageError(f"the ledger {file} could not be read: {error}") from error


class _Reader:
    """One connection for queries, one query at a time."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._connection = connect(file)

    def run(self, statement: Statement[T]) -> T:
        with self._lock:
            try:
                return statement(self._connection)
            except sqlite3.Error as error:
                raise StorageError(f"the ledger {self._file} could not be read: {error}") from error

    def close(self) -> None:
        with self._lock:
            self._connection.close()
