"""Rewards: finite numbers. An infrastructure failure is an aborted episode, never a reward of 0."""

import math
from typing import Annotated

from pydantic import BeforeValidator, Field

from ajet_core.errors import RewardError

MAX_ABS_REWARD = 1e6
"""A larger one is taken for a mistake: it would drown every other rollout of its group."""


def _checked(value: object) -> float:
    try:
        return validate_reward(value, "it")
    except RewardError as error:
        raise ValueError(error.message) from error  # what pydantic takes for a refusal


Reward = Annotated[
    float,
    BeforeValidator(_checked),
    Field(allow_inf_nan=False, ge=-MAX_ABS_REWARD, le=MAX_ABS_REWARD, strict=False),
]


def validate_reward(value: object, field: str = "reward") -> float:
    """Returns `value` as a float, or says why it cannot be a reward.

    Args:
        value: an int or a float (numpy scalars count), finite, at most `MAX_ABS_REWARD` in magnitude.
        field: the name used in the error.

    Raises:
        RewardError: the value is not a number, is NaN or infinite, or is too large.
    """
    if isinstance(value, str | bytes):
        raise RewardError(f"{field} must be a number, got {value!r}", field=field)
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise RewardError(f"{field} must be a number, got {value!r}", field=field) from None
    if not math.isfinite(number):
        raise RewardError(f"{field} must be finite, got {number}; abort the episode if the rollout failed", field=field)
    if abs(number) > MAX_ABS_REWARD:
        raise RewardError(f"{field} must be within ±{MAX_ABS_REWARD:g}, got {number:g}", field=field)
    return number
