"""Unions: episodes, of several servers too, that are finished together or not at all.

Two-phase commit. Each episode of a union is *prepared*: it promises its reward and takes no more calls. Then one of
them, which decides, is finished, and the others follow. Until it is, any trouble aborts them all: the deciding episode
still has a lease, and expires if its client dies (presumed abort).

The others cannot know what was decided, and must neither guess nor expire. They wait, for ever if need be, for a
messenger: the client, or any other that talks to both servers. It need not be trusted, and no server connects to
another: the deciding server holds two secrets and reveals the one of its decision, the others hold their digests.
"""

import time

from ajet_core.episode import EpisodeKind, EpisodeStatus
from ajet_core.errors import ConflictError, ForbiddenError, NotFoundError
from ajet_core.ids import digest_secret
from ajet_core.wire import Decides, FinishEpisode, FollowedUnion, PrepareEpisode, UnionState, UnionView
from ajet_server.capture import promises
from ajet_server.capture.ledger import Ledger, to_the_end
from ajet_server.capture.promises import Promise
from ajet_server.episodes.book import OpenBook, OpenState
from ajet_server.episodes.pool import Pool

_DECIDED = {
    EpisodeStatus.OPEN: UnionState.UNDECIDED,
    EpisodeStatus.FINISHED: UnionState.COMMITTED,
    EpisodeStatus.ABORTED: UnionState.ABORTED,
    EpisodeStatus.EXPIRED: UnionState.ABORTED,
}


class Unions:
    """What is prepared, and what was decided."""

    def __init__(self, ledger: Ledger, pool: Pool, book: OpenBook) -> None:
        self._ledger = ledger
        self._pool = pool
        self._book = book

    def restore(self) -> None:
        """Reads back what open episodes promised."""
        for promise in self._ledger.read_now(promises.open_promises):
            state = self._book.get(promise.episode_id)
            if state is not None:
                state.promise = promise

    async def prepare(self, state: OpenState, body: PrepareEpisode) -> None:
        """Records a promise durably; the caller holds the episode's lock. The same again is harmless.

        Raises:
            ConflictError: it promised something else, or another episode of this server decides for the union.
        """
        promise = _promise_of(state.record.id, body)
        if state.promise is not None:
            if state.promise != promise:
                raise ConflictError(f"episode {state.record.id} is prepared with other values already")
            return
        await to_the_end(self._record(state, promise))

    async def _record(self, state: OpenState, promise: Promise) -> None:
        state.promise = promise  # before it is written: from now on no call begins
        try:
            await self._ledger.write(lambda db: promises.insert_promise(db, promise))
        except BaseException:
            state.promise = None
            raise

    def view(self, union_id: str) -> UnionView:
        """Returns what was decided here. Raises `NotFoundError` if this server does not decide for the union."""
        view = self._view(union_id)
        if view is None:
            raise NotFoundError(f"no episode of this server decides for union {union_id}")
        return view

    def _view(self, union_id: str) -> UnionView | None:
        row = self._ledger.read_now(lambda db: promises.deciding_episode(db, union_id))
        if row is None:
            return None
        state = _DECIDED[EpisodeStatus(row["status"])]
        secrets = {UnionState.COMMITTED: row["commit_key"], UnionState.ABORTED: row["abort_key"]}
        return UnionView(union_id=union_id, state=state, secret=secrets.get(state))

    def proven(self, union_id: str, secret: str) -> tuple[UnionState, list[Promise]]:
        """Returns which decision a secret proves, and to whom.

        Raises:
            NotFoundError: no episode of this server follows the union.
            ForbiddenError: it proves nothing to some of them.
        """
        followers = self._ledger.read_now(lambda db: promises.following(db, union_id))
        if not followers:
            raise NotFoundError(f"no episode of this server follows union {union_id}")
        digest = digest_secret(secret)
        if all(promise.commit_key == digest for promise in followers):
            return UnionState.COMMITTED, followers
        if all(promise.abort_key == digest for promise in followers):
            return UnionState.ABORTED, followers
        raise ForbiddenError(f"the secret proves no decision about union {union_id}")

    def decided_here(self) -> list[UnionView]:
        """What this server decided for unions that its own episodes follow: they need no messenger."""
        views = [self._view(union.union_id) for union in self.followed()]
        return [view for view in views if view is not None and view.secret is not None]

    def followed(self, *, only_in_doubt: bool = False) -> list[FollowedUnion]:
        """The unions that open episodes wait for; on demand only those that nobody spoke of for a lease."""
        found: dict[str, list[Promise]] = {}
        for state in self._book.states:
            promise = state.promise
            if promise is not None and promise.follows and (state.in_doubt or not only_in_doubt):
                found.setdefault(promise.union_id, []).append(promise)
        return [_followed(union_id, group) for union_id, group in found.items()]

    def note_doubts(self) -> None:
        """Lets nobody wait for the episodes that are in doubt."""
        for state in self._book.states:
            if state.in_doubt and state.record.kind is EpisodeKind.TRAIN:
                self._pool.doubt(state.record.group_id, state.record.id)


def refuse_finish(promise: Promise | None, body: FinishEpisode) -> None:
    """Raises `ConflictError` if a client may not finish an episode like this, because of what it promised."""
    refuse_deciding_alone(promise)
    given = (body.reward, body.rewards, body.metrics)
    if promise is not None and (promise.reward, promise.rewards, promise.metrics) != given:
        raise ConflictError(
            f"reward: episode {promise.episode_id} is prepared with reward {promise.reward:g}, its rewards by role, "
            "and its metrics; it cannot be finished with others",
            field="reward",
        )


def refuse_deciding_alone(promise: Promise | None) -> None:
    """Raises `ConflictError` if an episode follows a union, so that its client may neither finish nor abort it."""
    if promise is not None and promise.follows:
        raise ConflictError(
            f"episode {promise.episode_id} is prepared for union {promise.union_id}, which {promise.decider} decides; "
            f"bring its decision with POST /api/unions/{promise.union_id}/decision"
        )


def _promise_of(episode_id: str, body: PrepareEpisode) -> Promise:
    part, given = body.part, (episode_id, body.union_id, body.reward, dict(body.rewards), dict(body.metrics))
    if isinstance(part, Decides):
        return Promise(*given, None, part.commit_secret, part.abort_secret, time.time())
    return Promise(*given, part.decider, part.commit_digest, part.abort_digest, time.time())


def _followed(union_id: str, promised: list[Promise]) -> FollowedUnion:
    return FollowedUnion(
        union_id=union_id,
        decider=promised[0].decider or "",
        episode_ids=[promise.episode_id for promise in promised],
        prepared_at=min(promise.prepared_at for promise in promised),
    )
