"""The explainer: where calls part, the kind, the cost."""

import json

import pytest
from hypothesis import given
from merge_strategies import calls, prefixes, sequence

from ajet_merge import Call, merge


class Letters:
    """Token 0 is a space, 1..26 are letters, 100 + 26 * a + b are two letters in one; 1000 is a reasoning mark."""

    def decode(self, token_ids: list[int], /) -> str:
        return "".join(self.text(token) for token in token_ids)

    def text(self, token: int) -> str:
        if token >= 1000:
            return "<think>"
        if token >= 100:
            return self.text(1 + (token - 100) // 26) + self.text(1 + (token - 100) % 26)
        return " abcdefghijklmnopqrstuvwxyz"[token]


def call(prompt: list[int], completion: list[int], call_id: str = "") -> Call:
    return Call(prompt, completion, [-1.0] * len(completion), call_id=call_id)


TRUNK = list(range(1, 11))
TAIL = list(range(11, 21))


def test_chains_need_no_explanation() -> None:
    forest = merge([call([1], [2]), call([1, 2, 3], [4]), call([1, 2], [3])])
    assert forest.explain().departures == ()
    assert str(forest.explain()) == "every call extends an earlier one or lies within one"


@pytest.mark.parametrize(
    ("earlier", "later", "kind", "kind_by_tokens", "cost"),
    [
        (call(TRUNK, [5, 6]), call(TRUNK, [5, 7]), "retry", "retry", 0),
        (call(TRUNK, [5, 6]), call([9], [5]), "nothing_shared", "nothing_shared", 0),
        (call(TRUNK, [1, 2, 3]), call([*TRUNK, 101, 3, 4], [5]), "retokenization", "context_changed", 3),
        (call(TRUNK, [1, 0, 0, 2]), call([*TRUNK, 1, 0, 2], [5]), "white_space", "context_changed", 1),
        (
            call([*TRUNK, 1000, 25, *TAIL], [1]),
            call([*TRUNK, *TAIL, 5], [1]),
            "stripped_reasoning",
            "context_removed",
            11,
        ),
        (call([*TRUNK, 25, 24, *TAIL], [1]), call([*TRUNK, *TAIL], [1]), "context_removed", "context_removed", 10),
        (call([*TRUNK, *TAIL], [1]), call([*TRUNK, 25, 24, *TAIL], [1]), "context_inserted", "context_inserted", 11),
        (call([*TRUNK, *TAIL], [1]), call([*TRUNK, 25, 24], [1]), "context_changed", "context_changed", 2),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_kinds_and_costs(earlier: Call, later: Call, kind: str, kind_by_tokens: str, cost: int) -> None:
    forest = merge([earlier, later])
    for found, expected in ((forest.explain(Letters()), kind), (forest.explain(), kind_by_tokens)):
        (departure,) = found.departures
        assert (departure.kind, departure.cost, departure.call) == (expected, cost, 1)


def test_the_report_shows_both_sides() -> None:
    forest = merge([call(TRUNK, [5, 6], "first"), call(TRUNK, [5, 7], "second"), call([3], [4], "third")])
    assert str(forest.explain(Letters())).splitlines() == [
        "call 1 ('second') left call 0 at position 11: retry, 7 'g' instead of 6 'f', cost 0",
        "call 2 ('third') shares nothing with earlier calls",
        "2 departures cost 0 prompt tokens",
    ]
    assert "retry, 7 instead of 6" in str(forest.explain())
    first = json.loads(json.dumps(forest.explain().as_dicts()))[0]
    assert (first["call"], first["earlier"], first["token"], first["earlier_token"]) == (1, 0, 7, 6)


def test_the_latest_call_on_the_path_is_named() -> None:
    forest = merge([call([1], [2]), call([1, 2, 3], [4, 5]), call([1, 2, 3], [4, 6]), call([1, 2, 3], [4, 7])])
    assert [(found.call, found.earlier) for found in forest.explain().departures] == [(2, 1), (3, 2)]


@given(calls())
def test_departures_are_the_calls_that_neither_extend_nor_repeat(made: list[Call]) -> None:
    expected: list[tuple[int, int]] = []
    for index, this in enumerate(made):
        before = [other for other in made[:index] if other.compat_key == this.compat_key]
        known = prefixes(before)
        shared = max((n for n in range(1, len(this) + 1) if (this.compat_key, sequence(this)[:n]) in known), default=0)
        extends = any(sequence(other) == sequence(this)[:shared] for other in before)
        if before and shared < len(this) and not extends:
            expected.append((index, shared))
    assert [(found.call, found.shared) for found in merge(made).explain(Letters()).departures] == expected
