"""Batch policies: pure functions of the pool."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.config import BatchConfig
from ajet_server.capture.records import PoolRow
from ajet_server.episodes.policies import complete_groups, decide, uninformative


def row(name: str, group: str, reward: float = 0.0) -> PoolRow:
    return PoolRow(name, group, False, "task", reward, 0)


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
    policy=st.sampled_from(["groups", "episodes", "informative_groups"]),
    size=st.integers(1, 4),
    group_size=st.integers(2, 5),
)


@given(pools, configs)
def test_what_is_taken(pool: list[PoolRow], config: BatchConfig) -> None:
    decision = decide(pool, config)
    assert decision == decide(list(pool), config), "the same pool, the same decision"
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
        assert len(groups) == config.size
        assert sum(len(group) for group in groups) == len(taken)


@given(pools, configs)
def test_what_is_taken_next_is_disjoint(pool: list[PoolRow], config: BatchConfig) -> None:
    first = decide(pool, config)
    second = decide([member for member in pool if member.episode_id not in first.take], config)
    assert not set(first.take) & set(second.take)


@given(pools, configs)
def test_uninformative_groups_are_never_taken(pool: list[PoolRow], config: BatchConfig) -> None:
    aside = {member.episode_id for member in uninformative(pool, config)}
    assert not aside & set(decide(pool, config).take)
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
