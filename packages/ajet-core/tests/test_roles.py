import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ajet_core.errors import AjetError, ConflictError, RequestError, RewardError
from ajet_core.roles import MAX_ROLES, key_of_role, refuse_rewards, refuse_role, split_key
from ajet_core.wire import FinishEpisode

names = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)


@given(names)
def test_a_key_names_its_role(role: str) -> None:
    assert split_key(key_of_role("sk-ajet-x_Y", role)) == ("sk-ajet-x_Y", role)
    assert split_key("sk-ajet-x_Y") == ("sk-ajet-x_Y", None)
    assert FinishEpisode.model_validate({"rewards": {role: 1.0}}).rewards == {role: 1.0}


@pytest.mark.parametrize("bad", ["", "a b", "a.b", "x" * 65, "weiß", "a\n", "\u0661", "a/b"])
def test_what_is_no_role(bad: str) -> None:
    with pytest.raises(RequestError, match="no name of a role") as caught:
        key_of_role("k", bad)
    assert caught.value.field == "role"
    with pytest.raises(RequestError) as caught:
        split_key(f"k.{bad}")
    assert caught.value.field == "api_key"
    with pytest.raises(ValidationError):
        FinishEpisode.model_validate({"rewards": {bad: 1.0}})


def test_calls_name_roles_or_they_do_not() -> None:
    for known, role in ((set[str | None](), None), (set[str | None](), "a"), ({"a"}, "b"), ({None}, None)):
        refuse_role("ep", known, role)
    for known, role in (({"a"}, None), ({None}, "a")):
        with pytest.raises(RequestError, match="some calls of episode ep name a role and some do not"):
            refuse_role("ep", known, role)


def test_there_is_a_bound() -> None:
    known = {f"r{number}" for number in range(MAX_ROLES)}
    refuse_role("ep", known, "r0")
    with pytest.raises(RequestError, match=r"has 64 roles.*'x' is one more"):
        refuse_role("ep", known, "x")


@pytest.mark.parametrize(
    ("known", "rewards", "error", "field"),
    [
        ({"a", "b"}, {"a": 1.0}, RewardError, "rewards.b"),
        ({"a"}, {"a": 1.0, "c": 1.0}, RewardError, "rewards.c"),
        ({"a", "b"}, {}, RewardError, "rewards.a"),
        ({None}, {"a": 1.0}, RewardError, "rewards.a"),
        (set(), {"a": 1.0}, RewardError, "rewards.a"),
        ({"a", None}, {"a": 1.0}, ConflictError, None),
        ({"a", None}, {}, ConflictError, None),
    ],
)
def test_rewards_are_those_of_the_roles(
    known: set[str | None], rewards: dict[str, float], error: type[AjetError], field: str | None
) -> None:
    with pytest.raises(error, match="ep") as caught:
        refuse_rewards("ep", known, rewards)
    assert caught.value.field == field
    if field:
        assert re.search(repr(field.removeprefix("rewards.")), caught.value.message)


def test_rewards_that_fit() -> None:
    refuse_rewards("ep", {"a", "b"}, {"b": 0.0, "a": 1.0})
    refuse_rewards("ep", {None}, {})
    refuse_rewards("ep", set(), {})


def test_the_reward_of_roles_is_their_mean_unless_it_is_given() -> None:
    assert FinishEpisode.model_validate({"rewards": {"a": 1, "b": 0}}).reward == 0.5
    assert FinishEpisode.model_validate({"rewards": {"a": 1, "b": 0}, "reward": 7}).reward == 7
    assert FinishEpisode.model_validate_json('{"reward": 1}').rewards == {}
    assert "reward" not in FinishEpisode.model_json_schema()["required"]


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({}, ("reward",)),
        ({"rewards": {}}, ("reward",)),
        ({"rewards": {"a": "x"}}, ("rewards", "a")),
        ({"rewards": {"a": float("nan"), "b": 1}}, ("rewards", "a")),
        ({"rewards": [1]}, ("reward",)),
        ({"rewards": {f"r{number}": 0 for number in range(MAX_ROLES + 1)}}, ("rewards",)),
    ],
)
def test_a_report_that_is_none(body: dict[str, object], where: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as caught:
        FinishEpisode.model_validate(body)
    assert caught.value.errors()[0]["loc"] == where
