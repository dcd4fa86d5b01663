"""Opens episodes. The same request again gets the same episode and the same keys, so a retry is harmless."""

import asyncio
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable
from sqlite3 import Row

from ajet_core.config import LimitsConfig
from ajet_core.episode import EpisodeKind
from ajet_core.errors import AjetError, ConflictError, UnavailableError
from ajet_core.events import EpisodeOpened
from ajet_core.ids import new_attempt_id, new_episode_id, new_group_id
from ajet_core.wire import OpenEpisode
from ajet_server.capture import records
from ajet_server.capture.ledger import Ledger, to_the_end
from ajet_server.capture.records import CallsSoFar, EpisodeRecord
from ajet_server.episodes.book import Changes, OpenBook
from ajet_server.episodes.keys import KeyMaker, digest_key
from ajet_server.episodes.line import Line, Owner, Ticket
from ajet_server.episodes.pool import Pool
from ajet_server.episodes.versions import NamedVersions
from ajet_server.observe.bus import EventLog

Admit = Callable[[EpisodeKind], None]
"""Raises `UnavailableError` when the engine's state does not allow a new episode of this kind."""


class Opener:
    """Opens episodes into the ledger, the pool and the book, in this order."""

    def __init__(
        self,
        ledger: Ledger,
        pool: Pool,
        keys: KeyMaker,
        events: EventLog,
        limits: LimitsConfig,
        book: OpenBook,
        changes: Changes,
        versions: NamedVersions,
    ) -> None:
        self._ledger = ledger
        self._pool = pool
        self._keys = keys
        self._events = events
        self._limits = limits
        self._book = book
        self._changes = changes
        self._versions = versions
        self._opening: dict[str, asyncio.Future[EpisodeRecord]] = {}
        self._being_written: Counter[Owner] = Counter()
        self._line = Line(self._held)
        self._nobody_waits = False

    async def open(
        self, body: OpenEpisode, weight_version: Callable[[], int], admit: Admit, wait_s: float = 0.0
    ) -> EpisodeRecord:
        """Opens an episode, or returns the one that this request opened before.

        Args:
            body: what is asked for.
            weight_version: tells the version that is served.
            admit: see there.
            wait_s: how long to wait until there is room for it, seconds, in the order of `Line`.

        Raises:
            UnavailableError: not now; the message says what it waits for.
            RequestError: its source has no share in the job.
            NotFoundError: the named weight version is not there.
            ConflictError: the group is full or of another task, or the request opened an episode that is closed by now,
                or the job serves no named versions.
        """
        while (pending := self._opening.get(body.request_id)) is not None:
            await asyncio.wait({pending})
            if not pending.cancelled():  # else its client has left, and this one takes over
                return pending.result()
        future: asyncio.Future[EpisodeRecord] = asyncio.get_running_loop().create_future()
        self._opening[body.request_id] = future
        try:
            record = await self._open_once(body, lambda: self._reserve(body, weight_version(), admit), wait_s)
        except AjetError as error:
            future.set_exception(error)
            future.exception()  # a duplicate may wait for it or not; asyncio must not call it "never retrieved"
            raise
        else:
            future.set_result(record)
            return record
        finally:
            del self._opening[body.request_id]
            future.cancel()  # no effect once it has a result

    async def _open_once(self, body: OpenEpisode, reserve: Callable[[], EpisodeRecord], wait_s: float) -> EpisodeRecord:
        known = self._ledger.read_now(lambda db: records.find_by_request(db, body.request_id))
        if known is not None:
            return self._repeat(known)
        record = await self._slot(Ticket(body, reserve), time.monotonic() + wait_s)
        try:
            await to_the_end(self._insert(record))
        finally:
            await self._changes.notify()  # of a slot that is free again too
        await self._events.emit(EpisodeOpened(episode_id=record.id, group_id=record.group_id, kind=record.kind))
        return record

    async def turn_away(self) -> None:
        """Answers those who wait, and lets nobody wait from now on: there will be no slots any more."""
        self._nobody_waits = True
        await self._changes.notify()

    async def _slot(self, ticket: Ticket, deadline: float) -> EpisodeRecord:
        """Waits in line for a slot. Nothing is kept for a client that leaves meanwhile."""
        self._line.enter(ticket)
        try:
            while True:
                seen = self._changes.count
                self._line.look(ticket, seen)
                if ticket.record is not None:
                    return ticket.record
                left = deadline - time.monotonic()
                if ticket.error is not None and (left <= 0 or not ticket.waits or self._nobody_waits):
                    raise ticket.error
                await self._changes.wait(seen, left)
        except BaseException:
            if ticket.record is not None:
                self._release(ticket.record)
                await self._changes.notify()
            raise
        finally:
            self._line.leave(ticket)

    def _reserve(self, body: OpenEpisode, weight_version: int, admit: Admit) -> EpisodeRecord:
        """Takes a slot for an episode, in memory. Raises why there is none; then nothing was changed."""
        admit(body.kind)
        self._refuse_crowd(body.kind)
        if body.weights is not None:
            self._versions.take(body.weights)
        record = self._record(body, weight_version)
        self._being_written[record.client_id, record.kind] += 1
        return record

    def _release(self, record: EpisodeRecord) -> None:
        """Gives back what `_reserve` took."""
        self._pool.leave(record.group_id, record.id)
        if record.weights is not None:
            self._versions.give_back(record.weights)
        self._being_written -= Counter({(record.client_id, record.kind): 1})

    def _held(self) -> Counter[Owner]:
        return self._book.held() + self._being_written

    def _refuse_crowd(self, kind: EpisodeKind) -> None:
        """Half of the bound is out of reach of evaluations, so that a flood of them leaves room for training."""
        most = self._limits.max_open_episodes
        held = len(self._book) + self._being_written.total()
        if held >= most:
            raise UnavailableError(f"{held} episodes are open, the bound (limits.max_open_episodes)", retry_after_s=1.0)
        if kind is EpisodeKind.TRAIN:
            return
        evaluations = sum(count for (_, of_kind), count in self._held().items() if of_kind is EpisodeKind.EVAL)
        if evaluations >= max(most // 2, 1):
            raise UnavailableError(
                f"{evaluations} eval episodes are open, half of limits.max_open_episodes={most}; the others train",
                retry_after_s=1.0,
            )

    async def _insert(self, record: EpisodeRecord) -> None:
        try:
            await self._ledger.write(lambda db: records.insert_episode(db, record))
        except BaseException:
            self._release(record)
            raise
        self._being_written -= Counter({(record.client_id, record.kind): 1})
        self._book.hold(record, CallsSoFar())

    def _repeat(self, row: Row) -> EpisodeRecord:
        state = self._book.get(row["id"])
        if state is None:
            raise ConflictError(
                f"request_id: {row['request_id']} opened episode {row['id']}, which is {row['status']} by now; "
                "use a new request_id",
                field="request_id",
            )
        return state.record

    def _record(self, body: OpenEpisode, weight_version: int) -> EpisodeRecord:
        task = json.dumps(body.task, sort_keys=True, separators=(",", ":"))
        task_id = body.task_id or f"task_{hashlib.sha256(task.encode()).hexdigest()[:16]}"
        episode_id, attempt_id = new_episode_id(), new_attempt_id()
        if body.kind is EpisodeKind.TRAIN:
            group_id = self._pool.join(body.group_id, task_id, episode_id, body.client_id, body.source)
        else:
            group_id = body.group_id or new_group_id()
        return EpisodeRecord(
            id=episode_id,
            attempt_id=attempt_id,
            request_id=body.request_id,
            group_id=group_id,
            group_named=body.group_id is not None,
            task_id=task_id,
            task=task,
            kind=body.kind,
            client_id=body.client_id,
            api_key_hash=digest_key(self._keys.key(attempt_id, "agent")),
            control_key_hash=digest_key(self._keys.key(attempt_id, "control")),
            weight_version=weight_version if body.weights is None else body.weights,
            opened_at=time.time(),
            weights=body.weights,
            source=body.source,
        )
