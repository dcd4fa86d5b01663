"""Brings the decisions about unions to the episodes that follow them."""

from ajet_core.episode import EpisodeStatus
from ajet_core.wire import Decision, EpisodeView, FinishEpisode, UnionState
from ajet_server.capture.promises import Promise
from ajet_server.episodes.lifecycle import Episodes


async def decide(episodes: Episodes, union_id: str, body: Decision) -> list[EpisodeView]:
    """Finishes or aborts the episodes that follow a union, as the secret proves. Again is harmless.

    Raises:
        NotFoundError: no episode of this server follows the union.
        ForbiddenError: the secret proves nothing.
    """
    decided, promised = episodes.unions.proven(union_id, body.secret)
    return [await _close(episodes, promise, decided) for promise in promised]


async def settle(episodes: Episodes) -> None:
    """Decides the unions within this server, and lets nobody wait for those in doubt. Called by the janitor."""
    for view in episodes.unions.decided_here():
        await decide(episodes, view.union_id, Decision(secret=view.secret or ""))
    episodes.unions.note_doubts()


async def _close(episodes: Episodes, promise: Promise, decided: UnionState) -> EpisodeView:
    view = episodes.view(promise.episode_id)
    if view.status is not EpisodeStatus.OPEN:
        return view
    if decided is UnionState.COMMITTED:
        kept = FinishEpisode(reward=promise.reward, rewards=promise.rewards, metrics=promise.metrics)
        return await episodes.finish(promise.episode_id, kept, decided=True)
    reason = f"union {promise.union_id} was aborted"
    return await episodes.lose(promise.episode_id, EpisodeStatus.ABORTED, reason, decided=True)
