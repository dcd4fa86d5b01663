from typing import Any

import pytest
from pydantic import ValidationError

from ajet_core.config import Job, RetentionConfig
from ajet_core.config_errors import config_error


def make(**sections: Any) -> Job:
    return Job.model_validate({"model": {"path": "m"}, **sections})


def refusal(**sections: Any) -> tuple[str | None, str]:
    with pytest.raises(ValidationError) as refused:
        make(**sections)
    error = config_error(refused.value)
    return error.field, error.message


def test_by_default_everything_is_kept() -> None:
    assert make().retention == RetentionConfig(trained_episodes=None, days=None)


@pytest.mark.parametrize(
    ("retention", "field"),
    [
        ({"trained_episodes": 0}, "retention.trained_episodes"),
        ({"days": 0}, "retention.days"),
        ({"days": float("inf")}, "retention.days"),
        ({"day": 1}, "retention.day"),
    ],
)
def test_what_there_is_not(retention: dict[str, Any], field: str) -> None:
    assert refusal(retention=retention)[0] == field


@pytest.mark.parametrize(
    ("batch", "keep", "least"),
    [
        ({"policy": "episodes", "size": 8, "group_size": 4}, 1, 8),
        ({"policy": "episodes", "size": 8, "group_size": 4}, 3, 24),
        ({"policy": "groups", "size": 8, "group_size": 4}, 2, 64),
        ({"policy": "informative_groups", "size": 8, "group_size": 4}, 2, 64),
    ],
)
def test_less_than_is_kept_anyway(batch: dict[str, Any], keep: int, least: int) -> None:
    sections = {"batch": batch, "checkpoint": {"keep": keep}}
    field, message = refusal(**sections, retention={"trained_episodes": least - 1})
    assert field == "retention.trained_episodes"
    assert f"{least - 1} cannot be kept to" in message
    assert f"use at least {least}" in message
    assert make(**sections, retention={"trained_episodes": least}).retention.trained_episodes == least
    assert make(**sections, retention={"days": 0.01}).retention.days == 0.01
