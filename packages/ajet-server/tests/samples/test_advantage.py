from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.config_algorithm import AdvantageScale, RewardBaseline
from ajet_server.samples.advantage import episode_advantages, overlong_cost, process_advantages

REWARDS, GROUPS = [0.0, 1.0, 0.5, 5.0, 7.0], ["a", "a", "a", "b", "b"]
SPREAD = np.std([0.0, 1.0, 0.5])
every_baseline = pytest.mark.parametrize("baseline", get_args(RewardBaseline))
every_scale = pytest.mark.parametrize("scale", get_args(AdvantageScale))
batches = st.lists(st.tuples(st.floats(-100, 100), st.sampled_from("abc")), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("baseline", "scale", "wanted"),
    [
        ("group_mean", "std", [-0.5 / SPREAD, 0.5 / SPREAD, 0, -1, 1]),
        ("group_mean", "none", [-0.5, 0.5, 0, -1, 1]),
        ("group_mean", "batch_std", np.array([-0.5, 0.5, 0, -1, 1]) / np.std([-0.5, 0.5, 0, -1, 1])),
        ("leave_one_out", "none", [-0.75, 0.75, 0, -2, 2]),
        ("leave_one_out", "std", [-0.75 / SPREAD, 0.75 / SPREAD, 0, -2, 2]),
        ("batch_mean", "none", np.array(REWARDS) - 2.7),
        ("batch_mean", "batch_std", (np.array(REWARDS) - 2.7) / np.std(REWARDS)),
    ],
)
def test_against_the_formulas(baseline: Any, scale: Any, wanted: Any) -> None:
    assert episode_advantages(REWARDS, GROUPS, baseline, scale) == pytest.approx(wanted)


def test_leave_one_out_is_the_mean_of_the_others() -> None:
    rewards = [0.3, 0.9, 0.1, 0.4]
    others = [np.mean(rewards[:i] + rewards[i + 1 :]) for i in range(4)]
    assert episode_advantages(rewards, ["g"] * 4, "leave_one_out", "none") == pytest.approx(
        np.subtract(rewards, others)
    )


@every_baseline
@every_scale
@pytest.mark.parametrize("rewards", [[1.0] * 4, [0.1 + 0.2, 0.3, 0.3, 0.3], [1e9, 1e9], [0.7]])
def test_equal_rewards_are_exactly_zero(rewards: list[float], baseline: Any, scale: Any) -> None:
    assert not episode_advantages(rewards, ["g"] * len(rewards), baseline, scale).any()


@every_baseline
@every_scale
def test_no_episodes(baseline: Any, scale: Any) -> None:
    assert episode_advantages([], [], baseline, scale).shape == (0,)


@every_baseline
@every_scale
@given(rows=batches, shift=st.floats(-10, 10))
def test_order_and_a_constant_shift_do_not_matter(
    baseline: Any, scale: Any, rows: list[tuple[float, str]], shift: float
) -> None:
    rewards, groups = [round(reward, 3) for reward, _ in rows], [group for _, group in rows]
    found = episode_advantages(rewards, groups, baseline, scale)
    assert np.isfinite(found).all()
    backwards = episode_advantages(rewards[::-1], groups[::-1], baseline, scale)
    assert found[::-1] == pytest.approx(backwards, abs=1e-5)
    shifted = episode_advantages([reward + shift for reward in rewards], groups, baseline, scale)
    assert shifted == pytest.approx(found, rel=1e-4, abs=1e-4)


@given(batches)
def test_groups_are_centred(rows: list[tuple[float, str]]) -> None:
    rewards, groups = [reward for reward, _ in rows], [group for _, group in rows]
    found = episode_advantages(rewards, groups)
    for group in set(groups):
        members = found[[g == group for g in groups]]
        assert abs(members.sum()) < 1e-3
        assert abs(members).max() <= np.sqrt(len(members)) + 1e-3


def test_two_copies_of_a_batch_have_the_same_advantages() -> None:
    for baseline, scale in (("group_mean", "std"), ("batch_mean", "batch_std")):
        once = episode_advantages(REWARDS, GROUPS, baseline, scale)
        twice = episode_advantages(REWARDS * 2, GROUPS * 2, baseline, scale)
        assert twice == pytest.approx(np.tile(once, 2))


def test_a_call_is_credited_with_what_came_after_it() -> None:
    rewards = np.array([1.0, 0.0, 2.0, 4.0, 5.0])
    episode = np.array([0, 1, 0, 1, 2])  # interleaved: each episode's own calls are in order
    single = (rewards[:4] - 1.75) / np.std(rewards[:4])
    found = process_advantages(rewards, episode, ["g", "g", "h"])
    wanted = [single[0] + single[2], single[1] + single[3], single[2], single[3], 0]
    assert found == pytest.approx(wanted)


def test_one_call_each_is_the_reward_of_the_episode() -> None:
    found = process_advantages(np.array(REWARDS), np.arange(5), GROUPS)
    assert found == pytest.approx(episode_advantages(REWARDS, GROUPS))


def test_overlong_completions_cost_up_to_one() -> None:
    found = overlong_cost(np.array([0, 60, 61, 80, 100, 500]), max_tokens=100, buffer=40)
    assert found.tolist() == pytest.approx([0, 0, 1 / 40, 0.5, 1, 1])
