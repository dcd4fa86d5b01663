"""Roles of an episode: for training, each is an episode of its own, in a group of its own.

So a role is compared with the same role of the other episodes of its group, and everything else that is said of
episodes (loss weights, critic, KL penalty) holds for it. What the roles' calls share is still computed once: merging
does not look at episodes.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from ajet_core.errors import RequestError
from ajet_server.worker.protocol import CallRow, EpisodeRow

Part = tuple[EpisodeRow, EpisodeRow]
"""(what is trained as an episode, the episode that it is of)."""


def parts_of(episodes: Sequence[EpisodeRow]) -> list[Part]:
    """Returns the roles of the episodes, those of one in the order of their names; one without roles as it is.

    Raises:
        RequestError: a call's role has no reward, or its episode has rewards by role and it has no role.
    """
    return [part for episode in episodes for part in _parts(episode)]


def _parts(episode: EpisodeRow) -> list[Part]:
    for row in episode.calls:
        if row.role not in (episode.rewards or (None,)):
            raise RequestError(
                f"episode {episode.episode_id!r}, call {row.call_id!r}: there is no reward for its role {row.role!r}",
                field="role",
            )
    if not episode.rewards:
        return [(episode, episode)]
    return [(_part(episode, role, reward), episode) for role, reward in sorted(episode.rewards.items())]


def _part(episode: EpisodeRow, role: str, reward: float) -> EpisodeRow:
    calls = [_call(row, role) for row in episode.calls if row.role == role]
    # No client's name of a group has such an end by accident.
    return EpisodeRow(f"{episode.episode_id}.{role}", f"{episode.group_id}\0{role}", reward, calls)


def _call(row: CallRow, role: str) -> CallRow:
    return replace(row, episode_id=f"{row.episode_id}.{role}")
