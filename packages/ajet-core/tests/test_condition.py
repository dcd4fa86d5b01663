"""Conditions: what they mean, that a verdict is a proof, and that texts go there and back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.condition import (
    UNITS,
    And,
    Comparison,
    Condition,
    Name,
    Not,
    Number,
    Or,
    durations,
    holds,
    lacking,
    names,
    never_or_always,
    verdict,
)
from ajet_core.condition_grammar import MAX_LENGTH, ConditionError, parse

FACTS = dict.fromkeys(UNITS, 0.0)
_COUNTS = [name for name, unit in UNITS.items() if unit not in ("time", "truth")]
_numbers = st.one_of(st.integers(0, 10**6).map(float), st.floats(0, 1e6).map(lambda value: round(value, 6)))
_operators = st.sampled_from(["<", "<=", ">", ">="])


def _comparisons(operators: st.SearchStrategy[str]) -> st.SearchStrategy[Condition]:
    counted = st.builds(Comparison, st.sampled_from(_COUNTS).map(Name), operators, st.builds(Number, _numbers))
    timed = st.builds(
        Comparison, st.just(Name("waited")), operators, st.builds(Number, _numbers, st.sampled_from(["s", "m", "h"]))
    )
    groups = st.sampled_from(["groups", "informative_groups"]).map(Name)
    return st.one_of(counted, timed, st.builds(Comparison, groups, operators, groups))


def _trees(operators: st.SearchStrategy[str], *, negated: bool) -> st.SearchStrategy[Condition]:
    leaves = st.one_of(_comparisons(operators), st.sampled_from([Name("any_client"), Name("all_clients")]))

    def grow(parts: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
        several = st.lists(parts, min_size=2, max_size=3).map(tuple)
        either = [st.builds(And, several), st.builds(Or, several)]
        return st.one_of(*either, *([st.builds(Not, parts)] if negated else []))

    return st.recursive(leaves, grow, max_leaves=6)


conditions = _trees(_operators, negated=True)
ranges = st.fixed_dictionaries(
    {
        name: st.sampled_from([(0, 0), (0, 1), (1, 1)])
        if unit == "truth"
        else st.tuples(st.integers(0, 100), st.integers(0, 100)).map(lambda two: (min(two), max(two)))
        for name, unit in UNITS.items()
    }
)


@given(conditions)
def test_texts_go_there_and_back(condition: Condition) -> None:
    if len(str(condition)) <= MAX_LENGTH:
        assert parse(str(condition)) == condition


@given(
    st.one_of(
        st.text(max_size=40),
        st.lists(st.sampled_from([*UNITS, *"()<>", ">=", "and", "or", "not", "3", "10m"])).map(" ".join),
    )
)
def test_every_text_is_a_condition_or_names_a_column(text: str) -> None:
    try:
        found = parse(text)
    except ConditionError as error:
        refusal = str(error)
    else:
        assert parse(str(found)) == found
        return
    assert refusal.startswith("column ")


@given(conditions, ranges, st.data())
def test_a_verdict_is_a_proof(condition: Condition, within: dict[str, Any], data: st.DataObject) -> None:
    facts = {name: float(data.draw(st.integers(low, high), label=name)) for name, (low, high) in within.items()}
    found = verdict(condition, within)
    assert found in (None, holds(condition, facts))
    assert (never_or_always(condition, within) is None) == (found is None)


@given(_trees(st.sampled_from([">", ">="]), negated=False), ranges, ranges)
def test_more_never_hurts_where_only_more_is_asked_for(
    condition: Condition, some: dict[str, Any], more: dict[str, Any]
) -> None:
    """Without `not` and `<`, and comparing with numbers only, more of everything keeps a condition true."""
    if any(name in names(condition) for name in ("groups", "informative_groups")):
        return  # they may stand on both sides of one comparison
    less = {name: float(low) for name, (low, _) in some.items()}
    greater = {name: max(less[name], float(high)) for name, (_, high) in more.items()}
    assert not holds(condition, less) or holds(condition, greater)


@given(conditions, ranges)
def test_what_is_lacking_is_told_of_whatever_does_not_hold(condition: Condition, within: dict[str, Any]) -> None:
    facts = {name: float(low) for name, (low, _) in within.items()}
    if not holds(condition, facts):
        assert lacking(condition, facts)


@pytest.mark.parametrize(
    ("text", "facts", "expected"),
    [
        ("groups >= 4", {"groups": 4}, True),
        ("groups > 4", {"groups": 4}, False),
        ("4 <= groups", {"groups": 4}, True),
        ("groups < 4", {"groups": 4}, False),
        ("waited > 10m", {"waited": 600.5}, True),
        ("waited >= 0.5h", {"waited": 1799}, False),
        ("waited>90s", {"waited": 91}, True),
        ("any_client", {"any_client": True}, True),
        ("not any_client", {"any_client": True}, False),
        ("informative_groups >= groups", {"groups": 2, "informative_groups": 2}, True),
        # `and` binds closer than `or`, `not` closer than both.
        ("any_client or groups >= 1 and episodes >= 1", {"any_client": True}, True),
        ("(any_client or groups >= 1) and episodes >= 1", {"any_client": True}, False),
        ("not any_client and groups >= 1", {"groups": 1}, True),
        ("not (any_client or groups >= 1)", {"groups": 1}, False),
        (
            "informative_groups >= 32 and staleness <= 2 or waited > 10m",
            {"informative_groups": 32, "staleness": 2},
            True,
        ),
        (
            "informative_groups >= 32 and staleness <= 2 or waited > 10m",
            {"informative_groups": 32, "staleness": 3},
            False,
        ),
        ("informative_groups >= 32 and staleness <= 2 or waited > 10m", {"waited": 601}, True),
    ],
)
def test_what_they_mean(text: str, facts: dict[str, float], expected: bool) -> None:
    assert holds(parse(text), FACTS | facts) is expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "column 1: expected a name, a number, 'not' or '(', not the end"),
        ("groups", "column 7: expected one of < <= > >= after 'groups', not the end"),
        ("groups >= ", "column 10: expected a name or a number, not the end"),
        ("groups == 4", "column 8: expected a name, a number, ( ) or one of < <= > >=, not '='"),
        ("groups >= 4 groups", "column 13: expected 'and', 'or' or the end, not 'groups'"),
        ("groups >= 4)", "column 12: expected 'and', 'or' or the end, not ')'"),
        ("(groups >= 4", "column 13: expected 'and', 'or' or ')', not the end"),
        ("gruops >= 4", "column 1: expected a name, not 'gruops'; did you mean groups?"),
        ("__import__ >= 4", "column 1: expected a name, not '__import__'; known are episodes, groups"),
        ("groups >= and", "column 11: expected a name or a number, not 'and'"),
        ("waited > 10", "column 10: expected a duration such as 10m to compare with 'waited', not '10'"),
        ("waited > 10d", "column 12: expected the unit s, m or h, not 'd'"),
        ("groups >= 10m", "column 11: expected a number or a name of groups to compare with 'groups', not '10m'"),
        ("groups >= episodes", "column 11: expected a number or a name of groups"),
        ("groups >= any_client", "column 11: expected a number or a name of groups"),
        ("any_client >= 1", "column 12: expected 'and', 'or' or the end, since any_client is true or false, not '>='"),
        ("groups >= 1e3", "column 12: expected the unit s, m or h, not 'e3'"),
        ("groups >= -1", "column 11: expected a name, a number, ( ) or one of < <= > >=, not '-'"),
        ("groups >= 9999999999999", "column 11: expected a number up to 1000000000000"),
        ("(" * 31 + "any_client" + ")" * 31, "column 31: expected at most 30 nested 'not' and parentheses"),
        ("not " * 31 + "any_client", "nested"),
        ("any_client or " * 40 + "any_client", "column 501: expected the end, a condition has at most 500 characters"),
    ],
)
def test_errors_name_the_column_and_what_was_expected(text: str, said: str) -> None:
    with pytest.raises(ConditionError) as refused:
        parse(text)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("groups >= 4", "groups is 1, not >= 4"),
        ("4 <= groups", "groups is 1, not >= 4"),
        ("groups >= 1 and waited > 10m", "waited is 42s, not > 10m"),
        ("groups >= 4 or waited > 10m", "groups is 1, not >= 4, or waited is 42s, not > 10m"),
        ("groups >= 4 and any_client", "groups is 1, not >= 4 and any_client is not true"),
        ("informative_groups >= groups", "informative_groups is 0, not >= groups (1)"),
        ("not groups >= 1", "'not groups >= 1' does not hold"),
    ],
)
def test_what_is_lacking(text: str, said: str) -> None:
    assert lacking(parse(text), FACTS | {"groups": 1, "waited": 42}) == said


def test_what_a_condition_uses() -> None:
    condition = parse("groups >= 4 and not all_clients or waited > 10m or waited > 30s")
    assert names(condition) == {"groups", "all_clients", "waited"}
    assert durations(condition) == {600, 30}
