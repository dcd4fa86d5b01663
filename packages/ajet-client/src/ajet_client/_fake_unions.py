"""Unions of `ajet_client.testing.FakeServer`: the same rules as a server's."""

from collections.abc import Iterable

from ajet_client._fake_episode import FakeEpisode
from ajet_core.episode import EpisodeStatus
from ajet_core.errors import ConflictError, ForbiddenError, NotFoundError
from ajet_core.ids import digest_secret
from ajet_core.wire import (
    Decides,
    FinishEpisode,
    FollowedUnion,
    FollowedView,
    Follows,
    PrepareEpisode,
    UnionState,
    UnionView,
)

_FINISHED = EpisodeStatus.FINISHED


def refuse_finish(promise: PrepareEpisode | None, report: FinishEpisode) -> None:
    """Raises `ConflictError` if the episode is prepared with another reward, or does not decide."""
    refuse_deciding_alone(promise)
    if promise is not None and (promise.reward, promise.rewards) != (report.reward, report.rewards):
        raise ConflictError(f"the episode is prepared with reward {promise.reward:g}", field="reward")


def refuse_deciding_alone(promise: PrepareEpisode | None) -> None:
    """Raises `ConflictError` if another episode decides."""
    if promise is not None and isinstance(promise.part, Follows):
        raise ConflictError(
            f"the episode is prepared for union {promise.union_id}, which {promise.part.decider} decides"
        )


def followed_view(episodes: Iterable[FakeEpisode]) -> FollowedView:
    """The unions that open episodes follow."""
    found: dict[str, FollowedUnion] = {}
    for episode in episodes:
        promise = episode.promise
        if episode.open and promise is not None and isinstance(promise.part, Follows):
            known = found.get(promise.union_id)
            found[promise.union_id] = FollowedUnion(
                union_id=promise.union_id,
                decider=promise.part.decider,
                episode_ids=[*(known.episode_ids if known else []), episode.id],
                prepared_at=0.0,
            )
    return FollowedView(unions=list(found.values()))


def union_view(union_id: str, episodes: Iterable[FakeEpisode]) -> UnionView:
    """What was decided. Raises `NotFoundError` if no episode decides."""
    for episode in episodes:
        promise = episode.promise
        if promise is not None and promise.union_id == union_id and isinstance(promise.part, Decides):
            part = promise.part
            if episode.open:
                return UnionView(union_id=union_id, state=UnionState.UNDECIDED, secret=None)
            if episode.status is _FINISHED:
                return UnionView(union_id=union_id, state=UnionState.COMMITTED, secret=part.commit_secret)
            return UnionView(union_id=union_id, state=UnionState.ABORTED, secret=part.abort_secret)
    raise NotFoundError(f"no episode decides for union {union_id}")


def decide(union_id: str, secret: str, episodes: Iterable[FakeEpisode]) -> None:
    """Finishes or aborts what follows a union. Raises `NotFoundError` or `ForbiddenError`."""
    digest, followers = digest_secret(secret), 0
    for episode in episodes:
        promise = episode.promise
        if promise is None or promise.union_id != union_id or not isinstance(promise.part, Follows):
            continue
        followers += 1
        if digest not in (promise.part.commit_digest, promise.part.abort_digest):
            raise ForbiddenError(f"the secret proves no decision about union {union_id}")
        if episode.open and digest == promise.part.commit_digest:
            episode.finish(promise)
        elif episode.open:
            episode.status, episode.reason = EpisodeStatus.ABORTED, f"union {union_id} was aborted"
    if not followers:
        raise NotFoundError(f"no episode follows union {union_id}")
