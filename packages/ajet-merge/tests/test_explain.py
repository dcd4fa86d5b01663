"""The explainer: where calls part, whom they are compared with, and what it costs."""

import json

import pytest
from hypothesis import given
from merge_strategies import calls, prefixes, sequence

from ajet_merge import Call, MergeError, merge
from ajet_merge.explain import CAUSES, SAME_CONTENT
from ajet_merge.messages import Context


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


def call(prompt: list[int], completion: list[int], call_id: str = "", **ids: str) -> Call:
    return Call(prompt, completion, [-1.0] * len(completion), call_id=call_id, **ids)


TRUNK = list(range(1, 11))
TAIL = list(range(11, 21))


def test_chains_need_no_explanation() -> None:
    forest = merge([call([1], [2]), call([1, 2, 3], [4]), call([1, 2], [3])])
    assert forest.explain().departures == ()
    assert forest.explain().by_cause() == []
    assert str(forest.explain()) == "every call goes on where earlier ones ended, or lies within one"


@pytest.mark.parametrize(
    ("earlier", "later", "cause", "cause_by_ids", "cost"),
    [
        (call(TRUNK, [5, 6]), call(TRUNK, [5, 7]), "retry", "retry", 0),
        (call(TRUNK, [5, 6]), call([26], [5]), "nothing_shared", "nothing_shared", 0),
        (call(TRUNK, [1, 2, 3]), call([*TRUNK, 101, 3, 4], [5]), "retokenization", "context_changed", 2),
        (call(TRUNK, [1, 0, 0, 2]), call([*TRUNK, 1, 0, 2], [5]), "white_space", "context_changed", 1),
        (
            call([*TRUNK, 1000, 25, *TAIL], [1]),
            call([*TRUNK, *TAIL, 5], [1]),
            "stripped_reasoning",
            "context_removed",
            10,
        ),
        (call([*TRUNK, 25, 24, *TAIL], [1]), call([*TRUNK, *TAIL], [1]), "context_removed", "context_removed", 10),
        (call([*TRUNK, *TAIL], [1]), call([*TRUNK, 25, 24, *TAIL], [1]), "context_inserted", "context_inserted", 10),
        (call([*TRUNK, *TAIL], [1]), call([*TRUNK, 25, 24], [1]), "context_changed", "context_changed", 0),
        (call([*TRUNK, 9, *TAIL], [1]), call([*TRUNK, 25, *TAIL], [1]), "context_changed", "context_changed", 11),
        (call([9, *TAIL], [1]), call([25, *TAIL], [1]), "context_changed", "context_changed", 11),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_causes_and_costs(earlier: Call, later: Call, cause: str, cause_by_ids: str, cost: int) -> None:
    forest = merge([earlier, later])
    for found, expected in ((forest.explain(Letters()), cause), (forest.explain(), cause_by_ids)):
        (departure,) = found.departures
        assert (departure.cause, departure.call) == (expected, 1)
        if expected == cause:
            assert departure.cost == cost


def test_a_turn_of_61_tokens_that_made_28404_tokens_run_again() -> None:
    """The text of a late turn is written in other tokens, and all that followed it with them."""
    history, rest = list(range(2000, 6000)), list(range(10_000, 10_000 + 28_402))
    earlier = call(history, [2009, 64, *rest])
    later = call([*history, 90633, *rest, 7, 8, 9], list(range(61)))
    (found,) = merge([earlier, later]).explain().departures
    assert (found.cause, found.new, found.gone, found.cost) == ("context_changed", 1, 2, 28_403)
    assert found.detail == "2 tokens replaced by 1, and then the same again"
    assert "90633 instead of 2009" in str(merge([earlier, later]).explain())


def test_the_report_has_totals_and_both_sides() -> None:
    forest = merge([call(TRUNK, [5, 6], "first"), call(TRUNK, [5, 7], "second"), call([*TAIL, 9], [4])])
    assert str(forest.explain(Letters())).splitlines() == [
        "3 calls, 2 departures; 0 of the forest's 25 tokens repeat what it holds already",
        "",
        "cause           departures  cost  what it means",
        "nothing_shared           1     0  not even the first token is the same, and nothing that follows",
        "retry                    1     0  the same prompt, sampled again",
        "",
        "call 1 ('second') left call 0 ('first') at position 11: retry (the prompt is shared whole, and sampled again; "
        "read from ids), 7 'g' instead of 6 'f', cost 0",
        "call 2 left call 1 ('second') at position 0: nothing_shared (the two have nothing in common; read from ids), "
        "11 'klmnopqrstid' instead of 1 'abcdefghijeg', cost 0",
    ]
    assert "7 instead of 6" in str(forest.explain())
    first = json.loads(json.dumps(forest.explain().as_dicts()))[0]
    assert (first["call"], first["earlier"], first["token"], first["earlier_token"]) == (1, 0, 7, 6)


def test_the_latest_call_on_the_path_is_named() -> None:
    forest = merge([call([1], [2]), call([1, 2, 3], [4, 5]), call([1, 2, 3], [4, 6]), call([1, 2, 3], [4, 7])])
    assert [(found.call, found.earlier) for found in forest.explain().departures] == [(2, 1), (3, 2)]


def test_calls_of_the_same_attempt_are_compared_first() -> None:
    mine = call([1, 2, 3, 4, 5], [6], attempt_id="mine")
    others = [call([1, 2, 3, 9, n], [6], attempt_id="other") for n in range(3)]
    again = call([1, 2, 3, 8, 5], [6], attempt_id="mine")
    *_, found = merge([mine, *others, again]).explain().departures
    assert (found.call, found.earlier, found.shared) == (4, 0, 3)


def test_calls_whose_conversation_begins_alike_are_compared_first() -> None:
    def context(task: str) -> Context:
        return Context(({"role": "system", "content": "s"}, {"role": "user", "content": task}))

    made = [call([1, 2, 3], [4]), call([1, 2, 9], [4]), call([1, 2, 8, 3], [4])]
    *_, found = merge(made).explain(None, [context("a"), context("b"), context("a")]).departures
    assert (found.call, found.earlier) == (2, 0)


def test_contexts_that_do_not_fit_are_refused() -> None:
    forest = merge([call([1], [2]), call([1], [3])])
    with pytest.raises(MergeError, match="contexts holds 1 items for 2 calls"):
        forest.explain(None, [None])
    with pytest.raises(MergeError, match=r"contexts\[1\] is a dict; give an ajet_merge.Context or None"):
        forest.explain(None, [None, {}])  # type: ignore[list-item]


def test_every_cause_says_what_it_means() -> None:
    assert set(CAUSES) > SAME_CONTENT


@given(calls())
def test_departures_are_the_calls_that_go_on_otherwise_than_an_earlier_one(made: list[Call]) -> None:
    expected: list[tuple[int, int]] = []
    for index, this in enumerate(made):
        before = [other for other in made[:index] if other.compat_key == this.compat_key]
        known = prefixes(before)
        shared = max((n for n in range(1, len(this) + 1) if (this.compat_key, sequence(this)[:n]) in known), default=0)
        beyond = any(len(other) > shared and sequence(other)[:shared] == sequence(this)[:shared] for other in before)
        if beyond and shared < len(this):
            expected.append((index, shared))
    assert [(found.call, found.shared) for found in merge(made).explain(Letters()).departures] == expected


def test_a_call_that_extends_one_call_but_leaves_the_path_of_a_later_one_is_named() -> None:
    made = [call([1], [3, 4]), call([1, 3, 4, 19, 5, 6], [7]), call([1, 3, 4, 5, 6], [8])]
    (found,) = merge(made).explain().departures
    assert (found.call, found.earlier, found.shared) == (2, 1, 3)


@given(calls())
def test_departures_show_the_calls_they_name(made: list[Call]) -> None:
    for tokenizer in (None, Letters()):
        for found in merge(made).explain(tokenizer).departures:
            ours, theirs = sequence(made[found.call]), sequence(made[found.earlier])
            assert found.earlier < found.call
            assert ours[: found.shared] == theirs[: found.shared]
            assert (found.token, found.earlier_token) == (ours[found.shared], theirs[found.shared])
            assert found.sampled == (found.shared >= made[found.earlier].prompt_ids.size)
            assert (found.new is None) == (found.gone is None)


@given(calls())
def test_costs_are_tokens_that_the_call_brought_in_its_prompt(made: list[Call]) -> None:
    """So no token is counted twice, and what is left of the forest is what it would have without the breaks."""
    explanation = merge(made).explain(Letters())
    for found in explanation.departures:
        assert 0 <= found.cost <= max(made[found.call].prompt_ids.size - found.shared, 0)
        assert found.cost <= len(made[found.earlier]) - found.shared
    assert explanation.cost == sum(total.cost for total in explanation.by_cause())
    assert len(explanation.departures) == sum(total.departures for total in explanation.by_cause())
    new = sum(len(made[found.call]) - found.shared for found in explanation.departures)
    assert explanation.cost <= new <= explanation.forest.num_tokens


def test_message_ends_beyond_the_prompt_are_refused() -> None:
    context = Context([{"role": "user", "content": "x"}], message_ends=[50])
    with pytest.raises(MergeError, match=r"contexts\[0\]: message_ends\[0\] = 50: must be at most"):
        merge([call([1], [2])]).explain(contexts=[context])
