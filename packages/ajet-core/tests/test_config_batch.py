from typing import Any

import pytest
from pydantic import ValidationError

from ajet_core.config import BatchConfig, Job
from ajet_core.config_errors import config_error


def _refusal(**batch: Any) -> str:
    with pytest.raises(ValidationError) as refused:
        Job.model_validate({"model": {"path": "m"}, "batch": batch})
    return config_error(refused.value).message


@pytest.mark.parametrize(
    ("batch", "bound", "condition", "asks"),
    [
        ({}, 4, "groups >= 4", False),
        ({"policy": "episodes", "size": 7}, 7, "episodes >= 7", False),
        ({"policy": "informative_groups"}, 4, "informative_groups >= 4", False),
        ({"policy": "any_client"}, None, "any_client", True),
        ({"policy": "all_clients", "size": 9}, 9, "all_clients", True),
        ({"when": "groups >= 2 or waited > 10m"}, 4, "groups >= 2 or waited > 10m", False),
        ({"when": "groups >= 2 and any_client"}, 4, "groups >= 2 and any_client", True),
    ],
)
def test_a_policy_has_a_bound_and_a_condition(
    batch: dict[str, Any], bound: int | None, condition: str, asks: bool
) -> None:
    config = BatchConfig.model_validate(batch)
    assert (config.bound, str(config.condition), config.asks_clients) == (bound, condition, asks)
    assert BatchConfig.model_validate(config.model_dump()) == config


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ({"when": "groups >= "}, "batch.when: got 'groups >= '; column 10: expected a name or a number, not the end"),
        ({"when": "groups >= 5"}, "is never true: groups is from 0 to 4 in this job"),
        ({"when": "episodes >= 33"}, "is never true: episodes is from 0 to 32"),
        ({"policy": "episodes", "size": 8, "when": "groups >= 2"}, "is never true: groups is from 0 to 1"),
        ({"when": "groups >= 0"}, "is always true: groups is from 0 to 4"),
        ({"when": "staleness <= 1 or groups >= 2"}, "is always true: staleness is from 0 to 1"),
        ({"when": "staleness > 1 and groups >= 2"}, "is never true: staleness is from 0 to 1"),
        ({"when": "waited >= 0s"}, "is always true: waited is at least 0"),
        ({"when": "3 > 2"}, "is always true: it compares only numbers"),
        ({"policy": "any_client", "when": "groups >= 2"}, "does not name any_client"),
        ({"when": "x" * 501}, "at most 500 characters"),
        ({"policy": "any_client", "min_reward_spread": 0.1}, "batch.min_reward_spread: has no effect"),
        ({"policy": "any_client", "group_size": 5000}, "can never hold one batch of 5000"),
    ],
)
def test_what_cannot_be_is_named(batch: dict[str, Any], said: str) -> None:
    assert said in _refusal(**batch)


@pytest.mark.parametrize(
    "batch",
    [
        {
            "size": 32,
            "policy": "informative_groups",
            "when": "informative_groups >= 32 and staleness <= 2 or waited > 10m",
        },
        {"policy": "informative_groups", "when": "groups >= 40 or informative_groups >= 4"},
        {"when": "groups >= 4 and all_clients"},
        {"policy": "all_clients", "when": "all_clients or waited > 10m"},
        {"policy": "any_client", "when": "any_client and groups >= 1000"},
        {"when": "informative_groups >= 2 or groups >= 4", "min_reward_spread": 0.5},
    ],
)
def test_what_can_be(batch: dict[str, Any]) -> None:
    Job.model_validate({"model": {"path": "m"}, "batch": batch})
