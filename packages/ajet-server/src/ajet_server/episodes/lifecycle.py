"""The life of episodes: `open -> finished | aborted | expired`, each step durable before it is acknowledged.

In between an episode may be prepared for a union (see `unions`); then the union's decision closes it.

Contract 2 (ledger): `finish` returns after the episode is on disk. Contract 3 (attempts): a key belongs to one attempt;
once its episode is closed the key is refused and late results are fenced off by the ledger itself. Opening, finishing
and aborting may be repeated: the answer is the same.
"""

import time
from collections.abc import Callable

from ajet_core.config import LimitsConfig
from ajet_core.episode import EpisodeKind, EpisodeStatus
from ajet_core.errors import (
    ConflictError,
    EpisodeClosedError,
    KeyRefusedError,
    NotFoundError,
    UnavailableError,
)
from ajet_core.events import EpisodeFinished, EpisodeLost, EpisodeOpened
from ajet_core.roles import refuse_rewards
from ajet_core.status import JanitorDeed
from ajet_core.wire import EpisodeView, FinishEpisode, OpenEpisode, PrepareEpisode
from ajet_server.capture import records
from ajet_server.capture.ledger import Ledger
from ajet_server.capture.records import EpisodeRecord, PoolRow
from ajet_server.episodes.agreeing import restore_agreements
from ajet_server.episodes.book import Changes, OpenBook, OpenState
from ajet_server.episodes.diary import Diary
from ajet_server.episodes.keys import KeyMaker, digest_key
from ajet_server.episodes.opening import Admit, Opener
from ajet_server.episodes.pool import Pool
from ajet_server.episodes.unions import Unions, refuse_deciding_alone, refuse_finish
from ajet_server.episodes.versions import NamedVersions
from ajet_server.observe.bus import EventLog


class Episodes:
    """The book of open episodes over the ledger and the pool."""

    def __init__(
        self,
        ledger: Ledger,
        pool: Pool,
        keys: KeyMaker,
        events: EventLog,
        limits: LimitsConfig,
        versions: NamedVersions,
    ) -> None:
        self._ledger = ledger
        self._pool = pool
        self._events = events
        self._limits = limits
        self._open = OpenBook(limits)
        self.unions = Unions(ledger, pool, self._open)
        self.changes = Changes()
        self.diary = Diary()
        self.versions = versions
        self._opener = Opener(ledger, pool, keys, events, limits, self._open, self.changes, versions)

    async def open(
        self, body: OpenEpisode, weight_version: Callable[[], int], admit: Admit, wait_s: float = 0.0
    ) -> EpisodeRecord:
        """Opens an episode; see `Opener.open`."""
        return await self._opener.open(body, weight_version, admit, wait_s)

    async def turn_away(self) -> None:
        """Answers those who wait for an episode: the server ends, or its job does."""
        await self._opener.turn_away()

    @property
    def open_count(self) -> int:
        """Open episodes of both kinds."""
        return len(self._open)

    @property
    def open_train_count(self) -> int:
        """Open train episodes: those that a drain waits for."""
        return self._open.train_count

    def restore(self) -> None:
        """Reads open and waiting episodes back from the ledger. Open ones get a whole lease: the clients may live."""
        for record, so_far in self._ledger.read_now(records.open_episodes):
            self._open.hold(record, so_far)
            if record.weights is not None:
                self.versions.hold(record.weights)
            if record.kind is EpisodeKind.TRAIN:
                self._pool.restore_open(record)
        self.unions.restore()
        for row in self._ledger.read_now(records.pool_rows):
            self._pool.finish(row)
        restore_agreements(self._ledger, self._pool)

    def agent(self, key: str) -> OpenState:
        """Returns the open episode of an agent's key and renews its lease.

        Raises:
            EpisodeClosedError: the episode is closed, or prepared.
            KeyRefusedError: no such key.
        """
        digest = digest_key(key)
        state = self._open.of_key(digest)
        if state is not None and state.promise is not None:
            raise EpisodeClosedError(f"episode {state.record.id} is prepared for a union; it takes no more calls")
        if state is not None:
            return self._open.renew(state)
        row = self._ledger.read_now(lambda db: records.find_by_key_hash(db, "api_key_hash", digest))
        if row is None:
            raise KeyRefusedError("this API key is unknown; open an episode and use its api_key")
        raise EpisodeClosedError(f"episode {row['id']} is {row['status']}; its API key is refused. Open a new episode")

    def check_control(self, episode_id: str, key: str) -> None:
        """Raises `KeyRefusedError` unless `key` is the control key of the episode, `NotFoundError` if there is none."""
        digest = digest_key(key)
        row = self._ledger.read_now(lambda db: records.find_by_key_hash(db, "control_key_hash", digest))
        if row is not None and row["id"] == episode_id:
            return
        if self._ledger.read_now(lambda db: records.episode_view(db, episode_id)) is None:
            raise NotFoundError(f"there is no episode {episode_id}")
        raise KeyRefusedError(f"this is not the control key of episode {episode_id}; use control_key of its grant")

    def renew(self, state: OpenState) -> None:
        """Renews the lease, as far as `limits.max_episode_s` allows."""
        self._open.renew(state)

    def heartbeat(self, episode_id: str) -> float:
        """Renews an open episode and returns the seconds until it expires. Raises `EpisodeClosedError`."""
        state = self._open.get(episode_id)
        if state is None:
            raise self._closed(episode_id)
        return self._open.renew(state).lease_until - time.monotonic()

    async def prepare(self, episode_id: str, body: PrepareEpisode) -> EpisodeView:
        """Promises the reward durably, for a union. The same again returns the same view.

        Raises:
            EpisodeClosedError: it is closed.
            ConflictError: a train episode without a single call has nothing to train; or it promised something else.
            RewardError: its rewards are not those of the roles that made calls.
            UnavailableError: a call of it is still running; a retry makes sense.
        """
        state = self._open.get(episode_id)
        if state is None:
            raise self._closed(episode_id)
        async with state.lock:
            if episode_id not in self._open:
                raise self._closed(episode_id)
            self._refuse_unfinished(state, body)
            await self.unions.prepare(state, body)
            self._open.renew(state)
        return self.view(episode_id)

    async def finish(self, episode_id: str, body: FinishEpisode, *, decided: bool = False) -> EpisodeView:
        """Records the reward durably. The same reward again returns the same view.

        Args:
            episode_id: which.
            body: its reward.
            decided: the union that it follows has decided so.

        Raises:
            EpisodeClosedError: it was aborted or expired, or finished with another reward.
            ConflictError: a train episode without a single call has nothing to train; or it is prepared.
            RewardError: its rewards are not those of the roles that made calls.
            UnavailableError: a call of it is still running; a retry makes sense.
        """
        state = self._open.get(episode_id)
        if state is None:
            return self._repeat_close(episode_id, EpisodeStatus.FINISHED, body)
        async with state.lock:
            if episode_id not in self._open:
                return self._repeat_close(episode_id, EpisodeStatus.FINISHED, body)
            self._refuse_unfinished(state, body)
            if not decided:
                refuse_finish(state.promise, body)
            await self._close(state, EpisodeStatus.FINISHED, body)
        view = self.view(episode_id)
        await self._announce(
            EpisodeFinished(
                episode_id=view.episode_id,
                group_id=view.group_id,
                kind=view.kind,
                reward=body.reward,
                calls=view.calls,
                completion_tokens=view.completion_tokens,
            )
        )
        return view

    def _refuse_unfinished(self, state: OpenState, body: FinishEpisode) -> None:
        if state.in_flight:
            raise UnavailableError(
                f"episode {state.record.id} has {state.in_flight} call(s) still running; report the reward after them",
                retry_after_s=1.0,
            )
        if state.record.kind is EpisodeKind.TRAIN and not state.recorded:
            raise ConflictError(
                f"episode {state.record.id} made no call, so there is nothing to train; abort it instead"
            )
        refuse_rewards(state.record.id, state.roles, body.rewards)

    async def lose(self, episode_id: str, status: EpisodeStatus, reason: str, *, decided: bool = False) -> EpisodeView:
        """Aborts or expires an episode and frees its slot. Again is harmless; a finished one cannot be lost.

        Raises:
            EpisodeClosedError: it is finished.
            ConflictError: it follows a union, which has not decided so.
        """
        state = self._open.get(episode_id)
        if state is None:
            return self._repeat_close(episode_id, status, None)
        async with state.lock:
            if episode_id not in self._open:
                return self._repeat_close(episode_id, status, None)
            if not decided:
                refuse_deciding_alone(state.promise)
            await self._close(state, status, reason=reason)
        record = state.record
        await self._announce(
            EpisodeLost(
                episode_id=record.id,
                group_id=record.group_id,
                kind=record.kind,
                status="aborted" if status is EpisodeStatus.ABORTED else "expired",
                reason=reason,
            )
        )
        return self.view(episode_id)

    async def _close(
        self,
        state: OpenState,
        status: EpisodeStatus,
        report: FinishEpisode | None = None,
        reason: str | None = None,
    ) -> None:
        name = state.record.id
        given = report.model_dump(include={"reward", "rewards", "metrics"}) if report is not None else {}
        await self._ledger.write(
            lambda db: records.close_episode(db, name, status, reason=reason, **given),
            lambda _: self._let_go(state, report),
        )

    def _let_go(self, state: OpenState, report: FinishEpisode | None) -> None:
        record = state.record
        self._open.drop(state)
        self.changes.mark()
        if record.weights is not None:
            self.versions.give_back(record.weights)
        if record.kind is EpisodeKind.EVAL:
            return
        if report is not None:
            self._pool.finish(state.finished(report))
        else:
            self._pool.leave(record.group_id, record.id)

    def _repeat_close(self, episode_id: str, status: EpisodeStatus, report: FinishEpisode | None) -> EpisodeView:
        view = self.view(episode_id)
        lost = (EpisodeStatus.ABORTED, EpisodeStatus.EXPIRED)
        given = (None, {}) if report is None else (report.reward, report.rewards)
        same = view.status == status and (view.reward, view.rewards) == given
        if same or (status in lost and view.status in lost):
            return view
        detail = f" with reward {view.reward:g}" if view.reward is not None else f" ({view.reason})"
        raise EpisodeClosedError(f"episode {episode_id} is {view.status}{detail} already")

    def view(self, episode_id: str) -> EpisodeView:
        """Returns the episode as the ledger knows it. Raises `NotFoundError`."""
        view = self._ledger.read_now(lambda db: records.episode_view(db, episode_id))
        if view is None:
            raise NotFoundError(f"there is no episode {episode_id}")
        return view

    def _closed(self, episode_id: str) -> EpisodeClosedError:
        view = self.view(episode_id)
        return EpisodeClosedError(f"episode {episode_id} is {view.status}")

    async def expire_silent(self) -> int:
        """Expires every episode whose lease ran out, and returns how many. Called by the janitor."""
        expired = 0
        for state in self._open.states:
            reason = state.why_due(self._limits)
            # Looked at one by one: while one is written, others are renewed or closed.
            if reason and state.record.id in self._open and not state.lock.locked():
                await self.lose(state.record.id, EpisodeStatus.EXPIRED, reason)
                self.diary.note(JanitorDeed.EXPIRED, reason, state.record.id)
                expired += 1
        return expired

    async def set_aside_unusable(self, weight_version: int) -> int:
        """Marks finished episodes that no batch will take, frees their slots, and returns how many there were.

        None is left when it returns, of those either that were finished while others were written.
        """
        self._pool.weight_version = weight_version
        count = 0
        while rows := self._pool.unusable():
            ids = [row.episode_id for row in rows]
            await self._ledger.write(
                lambda db, ids=ids: records.mark_stale(db, ids), lambda _, rows=rows: self._set_aside(rows)
            )
            await self.changes.notify()
            count += len(rows)
        return count

    def _set_aside(self, rows: list[PoolRow]) -> None:
        for row in rows:
            self.diary.note(JanitorDeed.SET_ASIDE, self._pool.why_unusable(row), row.episode_id)
        self._pool.set_aside(rows)
        self.changes.mark()

    async def _announce(self, event: EpisodeOpened | EpisodeFinished | EpisodeLost) -> None:
        await self.changes.notify()
        await self._events.emit(event)
