"""Batch policies: pure functions of the pool."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.condition import UNITS
from ajet_core.config import BatchConfig
from ajet_server.capture.records import PoolRow
from ajet_server.episodes.clients import Agreement
from ajet_server.episodes.policies import Decision, Tally, complete_groups, count, uninformative_groups
from ajet_server.episodes.policies import decide as decide_of

NOBODY = Agreement()


def row(name: str, group: str, reward: float = 0.0, *, version: int = 0, at: float = 0.0) -> PoolRow:
    return PoolRow(name, group, False, "task", reward, version, "client", at)


def decide(
    pool: list[PoolRow],
    config: BatchConfig,
    *,
    tally: Tally = Tally(),
    agreement: Agreement = NOBODY,
    version: int = 0,
    now: float = 0.0,
) -> Decision:
    return decide_of(count(pool, tally, config), config, agreement, version, now)


def rows(*rewards_by_group: list[float]) -> list[PoolRow]:
    return [
        row(f"g{group}e{at}", f"g{group}", reward)
        for group, rewards in enumerate(rewards_by_group)
        for at, reward in enumerate(rewards)
    ]


pools = st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from([0.0, 0.5, 1.0])), max_size=40).map(
    lambda members: [row(f"e{at}", group, reward) for at, (group, reward) in enumerate(members)]
)
configs = st.builds(
    BatchConfig,
    policy=st.sampled_from(["groups", "episodes", "informative_groups", "any_client", "all_clients"]),
    size=st.integers(1, 4),
    group_size=st.integers(2, 5),
)


ALL = Agreement(ready=("client",))


@given(pools, configs)
def test_what_is_taken(pool: list[PoolRow], config: BatchConfig) -> None:
    decision = decide(pool, config, agreement=ALL)
    assert decision == decide(list(pool), config, agreement=ALL), "the same pool, the same decision"
    assert decision.facts.keys() == UNITS.keys()
    assert decision.ready == bool(decision.take)
    assert len(set(decision.take)) == len(decision.take)
    by_id = {member.episode_id: member for member in pool}
    taken = [by_id[name] for name in decision.take]
    if not taken:
        assert decision.waiting_for != "nothing: the batch is complete"
    elif config.policy == "episodes":
        assert taken == pool[: config.size]
    else:
        groups = complete_groups(taken, config.group_size)
        assert len(groups) == config.bound or (config.asks_clients and groups == groups[: config.bound])
        assert sum(len(group) for group in groups) == len(taken)


@given(pools, configs)
def test_what_is_taken_next_is_disjoint(pool: list[PoolRow], config: BatchConfig) -> None:
    first = decide(pool, config, agreement=ALL)
    second = decide([member for member in pool if member.episode_id not in first.take], config, agreement=ALL)
    assert not set(first.take) & set(second.take)


@given(pools, configs)
def test_uninformative_groups_are_never_taken(pool: list[PoolRow], config: BatchConfig) -> None:
    aside = {member.episode_id for group in uninformative_groups(pool, config) for member in group}
    assert not aside & set(decide(pool, config, agreement=ALL).take)
    assert len(aside) % config.group_size == 0
    assert config.policy == "informative_groups" or not aside


@pytest.mark.parametrize(
    ("pool", "config", "take", "waiting_for"),
    [
        ([], {"policy": "episodes", "size": 2}, 0, "0 of 2 episodes finished"),
        (rows([1]), {"policy": "episodes", "size": 2}, 0, "1 of 2 episodes finished"),
        (rows([1], [1]), {"policy": "episodes", "size": 2}, 2, "nothing: the batch is complete"),
        (rows([1, 0], [1]), {"policy": "groups", "size": 2, "group_size": 2}, 0, "1 of 2 groups complete"),
        (rows([1, 0], [1, 1]), {"policy": "groups", "size": 2, "group_size": 2}, 4, "nothing: the batch is complete"),
        (
            rows([1, 1], [1, 1]),
            {"policy": "informative_groups", "size": 1, "group_size": 2},
            0,
            "0 of 1 informative groups (2 groups complete): all rewards are 1",
        ),
        (
            rows([1, 1], [0, 0]),
            {"policy": "informative_groups", "size": 1, "group_size": 2},
            0,
            "0 of 1 informative groups (2 groups complete)",
        ),
        (
            rows([1, 1], [1, 0]),
            {"policy": "informative_groups", "size": 1, "group_size": 2},
            2,
            "nothing: the batch is complete",
        ),
    ],
)
def test_sentences(pool: list[PoolRow], config: dict[str, object], take: int, waiting_for: str) -> None:
    decision = decide(pool, BatchConfig.model_validate(config))
    assert (len(decision.take), decision.waiting_for) == (take, waiting_for)


def test_groups_come_in_the_order_in_which_they_became_complete() -> None:
    pool = [row("1", "late"), row("2", "early"), row("3", "early"), row("4", "late")]
    config = BatchConfig(policy="groups", size=1, group_size=2)
    assert decide(pool, config).take == ("2", "3")


def test_a_spread_at_the_bound_is_none() -> None:
    config = BatchConfig(policy="informative_groups", size=1, group_size=2, min_reward_spread=0.5)
    assert not decide(rows([0.0, 0.5]), config).ready
    assert decide(rows([0.0, 0.75]), config).ready


@given(pools, configs, st.integers(1, 40))
def test_a_batch_that_is_complete_stays_so_when_more_episodes_finish(
    pool: list[PoolRow], config: BatchConfig, some: int
) -> None:
    """And it takes the same ones: what finishes during a drain comes later."""
    before, after = (decide(rows, config, agreement=ALL).take for rows in (pool[:some], pool))
    assert after[: len(before)] == before


def _members(pool: list[PoolRow], group_id: str) -> int:
    return sum(1 for row in pool if row.group_id == group_id)


@given(pools, configs)
def test_it_makes_no_difference_when_uninformative_groups_are_set_aside(
    pool: list[PoolRow], config: BatchConfig
) -> None:
    pool = [row for at, row in enumerate(pool) if _members(pool[:at], row.group_id) < config.group_size]
    groups = uninformative_groups(pool, config)
    aside = {member.episode_id for group in groups for member in group}
    kept = [member for member in pool if member.episode_id not in aside]
    assert decide(kept, config, tally=Tally().plus(groups)) == decide(pool, config)


@pytest.mark.parametrize(
    ("when", "moment", "ready"),
    [
        ("groups >= 2 or waited > 10s", {"now": 115.0}, False),
        ("groups >= 2 or waited > 10s", {"now": 115.5}, True),
        ("groups >= 1 and staleness <= 0", {"version": 4}, False),
        ("groups >= 1 and staleness <= 0", {"version": 3}, True),
        ("groups >= 1 and any_client", {}, False),
        ("groups >= 1 and any_client", {"agreement": Agreement(("a",), ("b",))}, True),
        ("groups >= 1 and all_clients", {"agreement": Agreement(("a",), ("b",))}, False),
        ("groups >= 1 and all_clients", {"agreement": Agreement(("a", "b"))}, True),
        ("ready_clients >= 2", {"agreement": Agreement(("a",), ("b",))}, False),
        ("ready_clients >= clients", {"agreement": Agreement(("a", "b"))}, True),
    ],
)
def test_conditions(when: str, moment: dict[str, object], ready: bool) -> None:
    """One complete group since 105 s, of version 3, and one episode of another that does not count."""
    pool = [
        row("1", "other", version=2, at=90),
        row("2", "one", version=4, at=100),
        row("3", "one", version=3, at=105),
    ]
    config = BatchConfig(group_size=2, when=when)
    found = decide(pool, config, **{"now": 110.0, "version": 4, **moment})  # type: ignore[arg-type]
    assert found.take == (("2", "3") if ready else ())


@pytest.mark.parametrize("policy", ["any_client", "all_clients"])
def test_an_agreement_takes_every_complete_group(policy: str) -> None:
    pool = [*rows([1, 0], [1, 1], [0])]
    config = BatchConfig.model_validate({"policy": policy, "group_size": 2})
    assert decide(pool, config).waiting_for == "0 of 0 clients ready; no client has said that it is ready"
    some = decide(pool, config, agreement=Agreement(("a",), ("b", "c")))
    assert some.ready == (policy == "any_client")
    if not some.ready:
        assert some.waiting_for == "1 of 3 clients ready; not ready: b, c"
    assert decide(pool, config, agreement=Agreement(("a", "b"))).take == ("g0e0", "g0e1", "g1e0", "g1e1")
    nothing = decide(pool[4:], config, agreement=ALL)
    assert (nothing.ready, nothing.waiting_for) == (False, "there is no complete group of 2 to train")


def test_why_forty_groups_are_not_trained() -> None:
    config = BatchConfig(policy="informative_groups", group_size=2, when="informative_groups >= 4 or waited > 10m")
    tally = Tally().plus([rows([0, 0])] * 39)
    assert decide(rows([0, 0]), config, tally=tally).waiting_for == (
        "informative_groups is 0, not >= 4, or waited is 0s, not > 10m (40 groups complete): all rewards are 0"
    )
    plain = BatchConfig(policy="informative_groups", group_size=2)
    assert decide([], plain, tally=tally).waiting_for == (
        "0 of 4 informative groups (39 groups complete): all rewards are 0"
    )


def test_a_group_is_informative_if_the_rewards_of_any_role_differ() -> None:
    config = BatchConfig(policy="informative_groups", size=1, group_size=2)

    def group(name: str, *rewards: dict[str, float]) -> list[PoolRow]:
        return [replace(row(f"{name}{at}", name, 0.0), rewards=its) for at, its in enumerate(rewards)]

    won_each_time = group("a", {"white": 1.0, "black": -1.0}, {"white": 1.0, "black": -1.0})
    assert not decide(won_each_time, config).ready, "white is not compared with black"
    assert uninformative_groups(won_each_time, config) == [won_each_time]
    won_once = group("b", {"white": 1.0, "black": -1.0}, {"white": 1.0, "black": 0.0})
    decision = decide(won_each_time + won_once, config)
    assert decision.take == ("b0", "b1")
    assert uninformative_groups(won_once, config) == []
