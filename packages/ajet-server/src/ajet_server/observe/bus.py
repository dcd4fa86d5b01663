"""The event log: every event is durable before anybody hears of it, and a watcher that fell behind reads the ledger."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from ajet_core.events import UpdateProgress
from ajet_server.capture.ledger import Ledger
from ajet_server.capture.steps import events_after, insert_event
from ajet_server.capture.writes import Statement

_PAGE = 500


class EventLog:
    """Writes events to the ledger and wakes those who watch."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._changed = asyncio.Condition()
        self._newest = 0
        self._progress: UpdateProgress | None = None
        self._progress_count = 0
        self._telling: set[asyncio.Task[None]] = set()
        self._closed = False

    async def emit(
        self, event: Any, then: Callable[[], None] | None = None, fact: Statement[object] | None = None
    ) -> None:
        """Records an event of `ajet_core.events` and tells the watchers.

        Args:
            event: what happened.
            then: makes the change in memory that mirrors it, once it is durable.
            fact: what is recorded with it, both or neither.
        """
        at = time.time()
        data = event.model_copy(update={"at": at}).model_dump_json()

        def mirror(_: int) -> None:
            if then is not None:
                then()

        def record(db: sqlite3.Connection) -> int:
            if fact is not None:
                fact(db)
            return insert_event(db, event.type, at, data)

        number = await self._ledger.write(record, mirror)
        async with self._changed:
            self._newest = max(self._newest, number)
            self._changed.notify_all()

    def post_progress(self, event: UpdateProgress) -> None:
        """Tells the watchers of this moment, in a while; not stored, and overwritten by the next one."""
        task = asyncio.get_running_loop().create_task(self._tell(event))
        self._telling.add(task)  # asyncio keeps only weak references to tasks
        task.add_done_callback(self._telling.discard)

    async def _tell(self, event: UpdateProgress) -> None:
        async with self._changed:
            self._progress = event.model_copy(update={"at": time.time()})
            self._progress_count += 1
            self._changed.notify_all()

    async def close(self) -> None:
        """Ends every `follow`."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()

    async def follow(self, after: int) -> AsyncIterator[tuple[int | None, str]]:
        """Yields (id, JSON) of every event after `after`, then of each new one; progress comes without an id."""
        seen_progress = self._progress_count
        while not self._closed:
            page = await self._ledger.read(lambda db, start=after: events_after(db, start, _PAGE))
            for number, data in page:
                after = number
                yield number, data
            if len(page) == _PAGE:
                continue
            if self._progress is not None and self._progress_count != seen_progress:
                seen_progress = self._progress_count
                yield None, self._progress.model_dump_json()
            async with self._changed:
                if self._newest <= after and self._progress_count == seen_progress and not self._closed:
                    await self._changed.wait()
