import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_client.outcome import Outcome, parse_outcome
from ajet_core.errors import RewardError
from ajet_core.reward import MAX_ABS_REWARD

numbers = st.floats(-MAX_ABS_REWARD, MAX_ABS_REWARD) | st.integers(-1000, 1000)


@given(number=numbers, metrics=st.dictionaries(st.text(), numbers))
def test_a_number_or_an_object_is_a_reward(number: float, metrics: dict[str, float]) -> None:
    assert parse_outcome(json.dumps(number), "it") == Outcome(float(number))
    text = json.dumps({"reward": number, "metrics": metrics})
    assert parse_outcome(text, "it") == Outcome(float(number), {name: float(value) for name, value in metrics.items()})
    assert parse_outcome(json.dumps({"reward": number}), "it") == Outcome(float(number))


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "reward"),
        ("done", "reward"),
        ('"1.0"', "reward"),
        ("null", "reward"),
        ("[1]", "reward"),
        ("nan", "reward"),
        ("NaN", "reward"),
        ("1e999", "reward"),
        ("1e7", "reward"),
        ("{}", "reward"),
        ('{"reward": 1, "metric": 2}', "reward"),
        ('{"reward": "1"}', "reward"),
        ('{"reward": 1, "metrics": [1]}', "reward"),
        ('{"reward": 1, "metrics": {"length": "7"}}', "metrics.length"),
        ('{"reward": 1, "metrics": {"length": NaN}}', "metrics.length"),
    ],
)
def test_anything_else_is_refused_by_name(text: str, field: str) -> None:
    with pytest.raises(RewardError) as caught:
        parse_outcome(text, "the last line")
    assert caught.value.field == field


def test_the_refusal_quotes_what_was_written_and_says_what_is_wanted() -> None:
    with pytest.raises(RewardError, match=r"the last line is 'x{200}…', but a number, or \{\"reward\"") as caught:
        parse_outcome("x" * 10_000, "the last line")
    assert len(caught.value.message) < 500
