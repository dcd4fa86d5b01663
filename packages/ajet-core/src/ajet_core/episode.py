"""An episode: one run of an agent on one task, from opening to its reward.

    open -> finished    the client reported a reward; the episode is on disk and may be trained
         -> aborted     the client gave it up; its slot in the group is free again
         -> expired     nobody called or renewed it within the lease; its slot is free again

A closed episode never opens again, and its keys are refused. An open one may be *prepared* for a union (see
`wire.PrepareEpisode`): its reward is promised, it takes no more calls, and it closes as the union is decided.
"""

from enum import StrEnum


class EpisodeKind(StrEnum):
    """What the episode is for."""

    TRAIN = "train"
    """Its tokens enter a training batch once it has a reward."""
    EVAL = "eval"
    """It never enters a batch and may use any sampling parameters."""


class EpisodeStatus(StrEnum):
    """Where the episode stands."""

    OPEN = "open"
    FINISHED = "finished"
    ABORTED = "aborted"
    EXPIRED = "expired"
