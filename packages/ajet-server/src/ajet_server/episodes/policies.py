"""Batch policies: pure functions of the pool, the same live and when a ledger is replayed.

What an update takes is the policy's, when it happens is a condition's (`batch.when`, or the policy's own):

    policy                takes, oldest first                                              own condition
    episodes              finished train episodes                                 (C1)     episodes >= size
    groups                complete groups of `group_size`                         (C2)     groups >= size
    informative_groups    those whose rewards (a role's) spread over epsilon      (C3)     informative_groups >= size
    any_client            complete groups                                         (C4)     any_client
    all_clients           complete groups                                         (C5)     all_clients
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ajet_core.condition import Facts, holds, lacking
from ajet_core.config import BatchConfig
from ajet_server.capture.records import PoolRow
from ajet_server.episodes.clients import Agreement

_READY = "nothing: the batch is complete"


@dataclass(frozen=True, slots=True)
class Tally:
    """Groups that were set aside as uninformative since the last update.

    Attributes:
        groups: how many.
        rewards: every reward among them, each once, and never more than two: more tell no more.
    """

    groups: int = 0
    rewards: frozenset[float] = frozenset()

    def plus(self, groups: list[list[PoolRow]]) -> "Tally":
        """Returns the tally with more groups."""
        return Tally(self.groups + len(groups), frozenset(sorted(self.rewards | _rewards(groups))[:2]))


@dataclass(frozen=True, slots=True)
class Census:
    """A pool, counted: all that a decision needs and that neither time nor clients change.

    Attributes:
        take: ids of the episodes that a batch would take now, in a fixed order.
        episodes: finished episodes that wait, without those of uninformative groups where these are set aside.
        groups: complete groups since the last update that no batch took, those set aside among them.
        informative: how many of them have rewards that differ.
        counted: the groups that the policy takes.
        complete_at: when the first group (episode) of `take` was complete, seconds of the pool's clock; None without.
        oldest_version: the oldest weight version among its tokens; None without.
        only_reward: the reward of every episode of the groups, None where they differ or there are none.
        by_source: groups (episodes) that the policy could take, by source.
    """

    take: tuple[str, ...]
    episodes: int
    groups: int
    informative: int
    counted: int
    complete_at: float | None
    oldest_version: int | None
    only_reward: float | None
    by_source: Mapping[str | None, int]


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy says of a pool.

    Attributes:
        take: ids of the episodes of the next batch, in a fixed order; empty while it is not ready.
        groups_complete: complete groups that count.
        waiting_for: one sentence; what is missing, or "nothing: the batch is complete".
        facts: the value of every name that a condition may use.
    """

    take: tuple[str, ...]
    groups_complete: int
    waiting_for: str
    facts: Facts

    @property
    def ready(self) -> bool:
        """True when the batch is complete."""
        return bool(self.take)


def count(pool: Iterable[PoolRow], tally: Tally, config: BatchConfig) -> Census:
    """Counts a pool.

    Args:
        pool: finished, untaken, fresh train episodes, oldest first.
        tally: what was set aside since the last update.
        config: the job's batch policy.
    """
    rows = list(pool)
    groups = complete_groups(rows, config.group_size)
    informative = [group for group in groups if _spread(group) > config.reward_spread]
    set_aside = len(groups) - len(informative) if config.policy == "informative_groups" else 0
    units = _units(rows, groups, informative, config)
    taken = _shares(units, config.quotas) if config.quotas else units[: config.bound]
    rewards = tally.rewards | _rewards(groups)
    return Census(
        take=tuple(row.episode_id for unit in taken for row in unit),
        episodes=len(rows) - set_aside * config.group_size,
        groups=len(groups) + tally.groups,
        informative=len(informative),
        counted=len(groups) if config.policy == "episodes" else len(units),
        complete_at=min((max(row.finished_at for row in unit) for unit in taken), default=None),
        oldest_version=min((row.oldest_version for unit in taken for row in unit), default=None),
        only_reward=next(iter(rewards)) if len(rewards) == 1 else None,
        by_source=Counter(unit[0].source for unit in units),
    )


def decide(census: Census, config: BatchConfig, agreement: Agreement, weight_version: int, now: float) -> Decision:
    """Returns which episodes the next batch takes, or what it waits for.

    Args:
        census: the pool.
        config: the job's batch policy.
        agreement: who agrees to an update.
        weight_version: the version that is served.
        now: seconds of the pool's clock.
    """
    facts = _facts(census, agreement, weight_version, now)
    if not holds(config.condition, facts) or _lacking_sources(census, config):
        return Decision((), census.counted, _sentence(census, config, agreement, facts), facts)
    waiting_for = _READY if census.take else _nothing_to_take(config)
    return Decision(census.take, census.counted, waiting_for, facts)


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


def uninformative_groups(rows: Iterable[PoolRow], config: BatchConfig) -> list[list[PoolRow]]:
    """Returns the complete groups that `informative_groups` will never take."""
    if config.policy != "informative_groups":
        return []
    groups = complete_groups(list(rows), config.group_size)
    return [group for group in groups if _spread(group) <= config.reward_spread]


def _units(
    rows: list[PoolRow], groups: list[list[PoolRow]], informative: list[list[PoolRow]], config: BatchConfig
) -> list[list[PoolRow]]:
    """What the policy takes as a whole or not at all, in the order of completion."""
    if config.policy == "episodes":
        return [[row] for row in rows]
    return informative if config.policy == "informative_groups" else groups


def _shares(units: list[list[PoolRow]], quotas: Mapping[str, int]) -> list[list[PoolRow]]:
    """The oldest units of each source, as many as it has a share of, in the order of completion."""
    left, taken = dict(quotas), list[list[PoolRow]]()
    for unit in units:
        source = unit[0].source
        if source is not None and left.get(source, 0):
            left[source] -= 1
            taken.append(unit)
    return taken


def _lacking_sources(census: Census, config: BatchConfig) -> list[str]:
    """The sources that have not given their share yet, as "tools 1 of 2"."""
    given = census.by_source
    return [f"{name} {given.get(name, 0)} of {n}" for name, n in config.quotas.items() if given.get(name, 0) < n]


def _facts(census: Census, agreement: Agreement, weight_version: int, now: float) -> Facts:
    ready, awaited = len(agreement.ready), len(agreement.awaited)
    return {
        "episodes": census.episodes,
        "groups": census.groups,
        "informative_groups": census.informative,
        "staleness": 0 if census.oldest_version is None else max(weight_version - census.oldest_version, 0),
        "waited": 0.0 if census.complete_at is None else now - census.complete_at,
        "clients": ready + awaited,
        "ready_clients": ready,
        "any_client": ready > 0,
        "all_clients": ready > 0 and not awaited,
    }


def _spread(group: list[PoolRow]) -> float:
    """The most that rewards of one role differ by."""
    by_role: dict[str | None, list[float]] = {}
    for row in group:
        for role, reward in row.earned.items():
            by_role.setdefault(role, []).append(reward)
    return max(max(rewards) - min(rewards) for rewards in by_role.values())


def _rewards(groups: list[list[PoolRow]]) -> set[float]:
    return {reward for group in groups for row in group for reward in row.earned.values()}


def _sentence(census: Census, config: BatchConfig, agreement: Agreement, facts: Facts) -> str:
    if config.when is not None:
        sentence = lacking(config.condition, facts)
    elif config.policy == "episodes":
        sentence = f"{census.episodes} of {config.bound} episodes finished"
    elif config.policy == "groups":
        sentence = f"{census.groups} of {config.bound} groups complete"
    elif config.policy == "informative_groups":
        sentence = f"{census.informative} of {config.bound} informative groups"
    else:
        sentence = f"{len(agreement.ready)} of {len(agreement.ready + agreement.awaited)} clients ready"
    return sentence + _sources_told(census, config) + _rewards_told(census, config) + _clients_told(config, agreement)


def _sources_told(census: Census, config: BatchConfig) -> str:
    lacking_sources = _lacking_sources(census, config)
    return f"; by source: {', '.join(lacking_sources)}" if lacking_sources else ""


def _rewards_told(census: Census, config: BatchConfig) -> str:
    if not config.counts_informative:
        return ""
    same = "" if census.informative or census.only_reward is None else f": all rewards are {census.only_reward:g}"
    complete = f"{census.groups} group{'' if census.groups == 1 else 's'} complete"
    return f" ({complete}){same}"


def _clients_told(config: BatchConfig, agreement: Agreement) -> str:
    if not config.asks_clients:
        return ""
    return (
        f"; not ready: {', '.join(agreement.awaited)}" if agreement.awaited else "; no client has said that it is ready"
    )


def _nothing_to_take(config: BatchConfig) -> str:
    kind = {"episodes": "finished episode", "informative_groups": "complete group whose rewards differ"}
    return f"there is no {kind.get(config.policy, f'complete group of {config.group_size}')} to train"
