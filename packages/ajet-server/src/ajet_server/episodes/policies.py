"""Batch policies: pure functions of the pool, so that they can be tested alone and replayed from the ledger.

episodes              `size` finished train episodes                                     (the paper's C1)
groups                `size` complete groups of `group_size`                             (C2)
informative_groups    `size` complete groups whose rewards spread by more than epsilon   (C3)
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ajet_core.config import BatchConfig
from ajet_server.capture.records import PoolRow


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy says of a pool.

    Attributes:
        take: ids of the episodes of the next batch, in a fixed order; empty while it is not ready.
        groups_complete: complete groups that count.
        waiting_for: one sentence; what is missing, or "nothing: the batch is complete".
    """

    take: tuple[str, ...]
    groups_complete: int
    waiting_for: str

    @property
    def ready(self) -> bool:
        """True when the batch is complete."""
        return bool(self.take)


_READY = "nothing: the batch is complete"


def decide(pool: Iterable[PoolRow], config: BatchConfig) -> Decision:
    """Returns which episodes the next batch takes, or what it waits for.

    Args:
        pool: finished, untaken, fresh train episodes, oldest first.
        config: the job's batch policy.
    """
    rows = list(pool)
    groups = complete_groups(rows, config.group_size)
    if config.policy == "episodes":
        return _by_episode(rows, len(groups), config.size)
    if config.policy == "groups":
        return _by_group(groups, config, f"{len(groups)} of {config.size} groups complete")
    informative = [group for group in groups if _spread(group) > config.reward_spread]
    return _by_group(informative, config, _informative_sentence(informative, groups, config))


def complete_groups(rows: list[PoolRow], group_size: int) -> list[list[PoolRow]]:
    """Returns the first `group_size` episodes of each group that has as many, in the order of their completion."""
    members: dict[str, list[PoolRow]] = {}
    complete: list[list[PoolRow]] = []
    for row in rows:
        group = members.setdefault(row.group_id, [])
        group.append(row)
        if len(group) == group_size:
            complete.append(group)
    return [group[:group_size] for group in complete]


def uninformative(rows: Iterable[PoolRow], config: BatchConfig) -> list[PoolRow]:
    """Returns the episodes of complete groups that `informative_groups` will never take."""
    if config.policy != "informative_groups":
        return []
    groups = complete_groups(list(rows), config.group_size)
    return [row for group in groups if _spread(group) <= config.reward_spread for row in group]


def _by_episode(rows: list[PoolRow], groups: int, size: int) -> Decision:
    if len(rows) < size:
        return Decision((), groups, f"{len(rows)} of {size} episodes finished")
    return Decision(tuple(row.episode_id for row in rows[:size]), groups, _READY)


def _by_group(groups: list[list[PoolRow]], config: BatchConfig, waiting_for: str) -> Decision:
    if len(groups) < config.size:
        return Decision((), len(groups), waiting_for)
    take = tuple(row.episode_id for group in groups[: config.size] for row in group)
    return Decision(take, len(groups), _READY)


def _spread(group: list[PoolRow]) -> float:
    rewards = [row.reward for row in group]
    return max(rewards) - min(rewards)


def _informative_sentence(informative: list[list[PoolRow]], groups: list[list[PoolRow]], config: BatchConfig) -> str:
    sentence = f"{len(informative)} of {config.size} informative groups ({len(groups)} groups complete)"
    flat = {row.reward for group in groups for row in group}
    if groups and not informative and len(flat) == 1:
        sentence += f": all rewards are {flat.pop():g}"
    return sentence
