import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_server.samples.advantage import group_advantages


def test_std_is_over_the_episodes_of_the_group() -> None:
    rewards, groups = [0.0, 1.0, 0.5, 5.0, 7.0], ["a", "a", "a", "b", "b"]
    spread = np.std([0.0, 1.0, 0.5])
    wanted = [-0.5 / spread, 0.5 / spread, 0.0, -1.0, 1.0]
    assert group_advantages(rewards, groups, "std") == pytest.approx(wanted)
    assert group_advantages(rewards, groups, "none") == pytest.approx([-0.5, 0.5, 0.0, -1.0, 1.0])


@pytest.mark.parametrize("rewards", [[1.0] * 4, [0.1 + 0.2, 0.3, 0.3, 0.3], [1e9, 1e9], [0.7]])
@pytest.mark.parametrize("scale", ["std", "none"])
def test_equal_rewards_are_exactly_zero(rewards: list[float], scale: str) -> None:
    assert not group_advantages(rewards, ["g"] * len(rewards), scale).any()  # pyright: ignore[reportArgumentType]


def test_no_episodes() -> None:
    assert group_advantages([], [], "std").shape == (0,)


@given(st.lists(st.tuples(st.floats(-100, 100), st.sampled_from("abc")), min_size=1, max_size=20), st.randoms())
def test_order_of_episodes_does_not_matter_and_groups_are_centred(
    rows: list[tuple[float, str]], random: object
) -> None:
    rewards, groups = [reward for reward, _ in rows], [group for _, group in rows]
    found = group_advantages(rewards, groups, "std")
    assert np.isfinite(found).all()
    for group in set(groups):
        members = found[[g == group for g in groups]]
        assert abs(members.sum()) < 1e-3
        assert abs(members).max() <= np.sqrt(len(members)) + 1e-3
    backwards = group_advantages(rewards[::-1], groups[::-1], "std")
    assert found[::-1] == pytest.approx(backwards, abs=1e-5)
