"""The reward as an agent's program writes it: a number, or `{"reward": 1.0, "metrics": {"length": 7}}`."""

import json
from dataclasses import dataclass, field

from ajet_core.errors import RewardError
from ajet_core.reward import validate_reward

_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Outcome:
    """A reward and further numbers; all finite."""

    reward: float
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
    unknown = sorted(set(value) - {"reward", "metrics"})
    metrics = value.get("metrics", {})
    if unknown or "reward" not in value or not isinstance(metrics, dict):
        raise _refusal("reward", text, where)
    return Outcome(
        _number(value["reward"], "reward", text, where),
        {name: _number(number, f"metrics.{name}", text, where) for name, number in metrics.items()},
    )


def _number(value: object, field: str, text: str, where: str) -> float:
    if not isinstance(value, int | float):
        raise _refusal(field, text, where)
    return validate_reward(value, field)


def _refusal(field: str, text: str, where: str) -> RewardError:
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    wanted = 'a number, or {"reward": 1.0, "metrics": {"name": 1.0}}'
    return RewardError(f"{field}: {where} is {shown!r}, but {wanted} is wanted", field=field)
