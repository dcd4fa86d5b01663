import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_server.samples.gae import gae

numbers = st.floats(-5, 5)
shares = st.floats(0, 1)


@given(st.lists(st.tuples(numbers, numbers), max_size=8), shares, shares)
def test_is_the_sum_of_discounted_errors(rows: list[tuple[float, float]], discount: float, trace: float) -> None:
    rewards, values = (np.array([row[i] for row in rows], np.float64) for i in (0, 1))
    after = [*values[1:], 0.0]
    wanted = [
        sum(
            (discount * trace) ** (k - t) * (rewards[k] + discount * after[k] - values[k])
            for k in range(t, len(rewards))
        )
        for t in range(len(rewards))
    ]
    advantages, returns = gae(rewards, values, discount, trace)
    assert advantages == pytest.approx(wanted, abs=1e-9)
    assert returns == pytest.approx(advantages + values, abs=1e-9)


def test_without_discount_the_return_is_the_reward() -> None:
    _, returns = gae(np.array([0.0, 0.0, 2.0]), np.array([0.4, -1.0, 3.0]), 1.0, 1.0)
    assert returns == pytest.approx([2, 2, 2])


def test_inputs_stay_as_they_are() -> None:
    rewards, values = np.ones(3), np.ones(3)
    gae(rewards, values, 0.9, 0.9)
    assert rewards.tolist() == values.tolist() == [1, 1, 1]
