"""The reward as an agent's program writes it: a number, or `{"reward": 1.0, "metrics": {"length": 7}}`.

The reward of an episode in several roles is an object: `{"reward": {"white": 1.0, "black": -1.0}}`.
"""

import json
from dataclasses import dataclass, field

from ajet_core.errors import RewardError
from ajet_core.reward import validate_reward

_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Outcome:
    """A reward, or one for each role, and further numbers; all finite."""

    reward: float | dict[str, float]
    metrics: dict[str, float] = field(default_factory=dict[str, float])


def parse_outcome(text: str, where: str) -> Outcome:
    """Reads what a program wrote.

    Args:
        text: one JSON value.
        where: what it is, for the error: "the last line of its output".

    Raises:
        RewardError: it is no JSON number and no object of `reward` and `metrics`, or a number in it is not finite.
    """
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if not isinstance(value, dict):
        return Outcome(_number(value, "reward", text, where))
    reward = value.get("reward")
    unknown = sorted(set(value) - {"reward", "metrics"})
    metrics = value.get("metrics", {})
    if unknown or reward == {} or not isinstance(metrics, dict):
        raise _refusal("reward", text, where)
    return Outcome(
        _numbers(reward, "rewards", text, where)
        if isinstance(reward, dict)
        else _number(reward, "reward", text, where),
        _numbers(metrics, "metrics", text, where),
    )


def _numbers(values: dict[str, object], field: str, text: str, where: str) -> dict[str, float]:
    return {name: _number(number, f"{field}.{name}", text, where) for name, number in values.items()}


def _number(value: object, field: str, text: str, where: str) -> float:
    if not isinstance(value, int | float):
        raise _refusal(field, text, where)
    return validate_reward(value, field)


def _refusal(field: str, text: str, where: str) -> RewardError:
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    wanted = 'a number, or {"reward": 1.0, "metrics": {"name": 1.0}}'
    return RewardError(f"{field}: {where} is {shown!r}, but {wanted} is wanted", field=field)
