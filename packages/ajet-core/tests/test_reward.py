import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ajet_core.errors import RewardError
from ajet_core.reward import MAX_ABS_REWARD, validate_reward
from ajet_core.wire import FinishEpisode

_finite = st.floats(min_value=-MAX_ABS_REWARD, max_value=MAX_ABS_REWARD)


@given(_finite | st.integers(-(10**6), 10**6))
def test_finite_numbers_pass_unchanged(value: float) -> None:
    assert validate_reward(value) == value
    assert FinishEpisode(reward=value).reward == value


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1", b"1", None, [1], {}, 1e7, object()])
def test_everything_else_is_refused_by_name(value: object) -> None:
    with pytest.raises(RewardError, match=r"^reward must be") as refusal:
        validate_reward(value)
    assert refusal.value.field == "reward"


@pytest.mark.parametrize("value", [math.nan, math.inf, "high", None, 1e7])
def test_the_wire_refuses_it_too(value: object) -> None:
    with pytest.raises(ValidationError):
        FinishEpisode.model_validate({"reward": value})


def test_the_name_of_a_metric_is_used() -> None:
    with pytest.raises(RewardError, match=r"metrics\.speed must be finite"):
        validate_reward(math.nan, "metrics.speed")
