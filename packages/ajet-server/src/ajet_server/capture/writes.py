"""Writes that wait for the ledger: what each is to run, and who is to be told."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")
Item = TypeVar("Item")
Statement = Callable[[sqlite3.Connection], T]
"""Runs in the ledger's thread, inside a transaction; again if another one of that transaction fails."""


@dataclass(frozen=True, slots=True)
class Bulk(Generic[Item]):
    """A statement over items; those of one kind that wait next to each other are run as one.

    Attributes:
        run: does all items, or raises and does none. It returns nothing.
        items: at least one.
        at_once: of so many items `run` makes one SQL statement, which needs no transaction around it.
    """

    run: Callable[[sqlite3.Connection, list[Item]], None]
    items: list[Item]
    at_once: int

    def __call__(self, db: sqlite3.Connection) -> None:
        self.run(db, self.items)

    @property
    def is_one_statement(self) -> bool:
        """Whether SQLite does all of it or nothing, and makes it durable, by itself."""
        return len(self.items) <= self.at_once


@dataclass(slots=True, eq=False)
class Write:
    """A statement in the queue.

    Attributes:
        statement: to run.
        future: of who waits for it: a thread, or a task of an event loop.
        then: is handed its result, in the event loop, whether or not somebody still waits.
        settled: everybody was told.
    """

    statement: Statement[Any]
    future: Future[Any] | asyncio.Future[Any]
    then: Callable[[Any], None] | None = None
    settled: bool = False

    def settle(self, result: Any, problem: Exception | None) -> None:
        """Tells everybody."""
        self.settled = True
        if problem is None and self.then is not None:
            try:
                self.then(result)
            except Exception as error:  # noqa: BLE001 - it goes to whoever waits; here it would stop other writes
                problem = error
        if self.future.done():  # who waited was cancelled
            return
        if problem is not None:
            self.future.set_exception(problem)
        else:
            self.future.set_result(result)


Outcome: TypeAlias = tuple[Write, Any, Exception | None]
Part: TypeAlias = tuple[Statement[Any], list[Write]]
"""A statement, and the writes that it does all at once; with several, its result is that of each."""


def joined(group: Sequence[Write]) -> list[Part]:
    """Puts together what can be run as one, in the order of the group."""
    return [_part(list(writes)) for _, writes in groupby(group, _kind)]


def tell(outcomes: Sequence[Outcome]) -> None:
    """Lets everybody know; each event loop at once, since waking one is what costs."""
    by_loop: dict[asyncio.AbstractEventLoop | None, list[Outcome]] = {}
    for outcome in outcomes:
        future = outcome[0].future
        loop = future.get_loop() if isinstance(future, asyncio.Future) else None
        by_loop.setdefault(loop, []).append(outcome)
    for loop, its in by_loop.items():
        if loop is None:
            _settle(its)
            continue
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_settle, its)


def _kind(write: Write) -> object:
    return write.statement.run if isinstance(write.statement, Bulk) else write


def _part(writes: list[Write]) -> Part:
    statements = [write.statement for write in writes]
    bulks = [statement for statement in statements if isinstance(statement, Bulk)]
    if len(bulks) > 1:
        return replace(bulks[0], items=[item for bulk in bulks for item in bulk.items]), writes
    return statements[0], writes


def _settle(outcomes: list[Outcome]) -> None:
    for write, result, problem in outcomes:
        write.settle(result, problem)
