"""What a break costs: what is equal again and what was rewritten, but nothing that is new."""

from itertools import chain
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_merge import Call, merge

TRUNK = list(range(10))
BLOCK = 20
"""Tokens of a block: enough to be found again."""

Change = Literal["kept", "inserted", "removed", "rewritten shorter", "rewritten longer"]
CHANGES: list[Change] = ["kept", "inserted", "removed", "rewritten shorter", "rewritten longer"]


def call(prompt: list[int], completion: list[int]) -> Call:
    return Call(prompt, completion, [-1.0] * len(completion))


def block(number: int, size: int = BLOCK) -> list[int]:
    return list(range(100 * (number + 1), 100 * (number + 1) + size))


def both(changes: list[Change]) -> tuple[list[int], list[int]]:
    """What the earlier call and the later one hold after the trunk."""
    earlier, later = [1], [2]
    for at, change in enumerate(changes):
        old, new = block(2 * at), block(2 * at + 1, {"rewritten shorter": 7, "rewritten longer": 90}.get(change, 30))
        earlier += [] if change == "inserted" else old
        later += {"kept": old, "removed": []}.get(change, new)
    return earlier, later


@pytest.mark.parametrize(
    ("changes", "cost"),
    [
        (["kept"], 1 + BLOCK),
        (["kept", "inserted", "kept"], 1 + 2 * BLOCK),
        (["kept", "removed", "kept"], 1 + 2 * BLOCK),
        (["kept", "rewritten shorter", "kept"], 1 + 2 * BLOCK + 7),
        (["kept", "rewritten longer", "kept"], 1 + 3 * BLOCK),
        (["inserted", "kept", "inserted"], 1 + BLOCK),
        (["kept", "rewritten longer"], 1 + BLOCK),
        (["rewritten longer"], 0),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, list) else "",
)
def test_costs(changes: list[Change], cost: int) -> None:
    earlier, later = both(changes)
    (found,) = merge([call(TRUNK + earlier, [0]), call(TRUNK + later, [0])]).explain().departures
    assert found.cost == cost


@given(st.lists(st.sampled_from(CHANGES), max_size=8))
def test_costs_are_bounded_from_both_sides(changes: list[Change]) -> None:
    earlier, later = both(changes)
    (found,) = merge([call(TRUNK + earlier, [0]), call(TRUNK + later, [0])]).explain().departures
    last = max((at for at, change in enumerate(changes) if change == "kept"), default=-1)
    before = changes[: last + 1]
    kept = before.count("kept") * BLOCK
    lost = len([change for change in before if change not in ("kept", "inserted")]) * BLOCK
    added = [{"inserted": 30, "rewritten shorter": 7, "rewritten longer": 90}.get(change, 0) for change in before]
    assert kept <= found.cost <= kept + min(lost, sum(added)) + 1


def moving_reminder() -> list[Call]:
    """A reminder that stands behind the latest turn: each call repeats it, and brings 620 tokens of its own."""
    reminder, talk, calls = list(range(900, 940)), [1, 2, 3, *range(100, 200)], list[Call]()
    for turn in range(10):
        completion = [2000 + turn] * 20
        calls.append(call([*talk, *reminder, 7], completion))
        talk += completion + list(range(3000 + turn * 600, 3600 + turn * 600))
    return calls


def test_a_reminder_that_moves_behind_each_turn_costs_no_more_than_itself() -> None:
    explanation = merge(moving_reminder()).explain()
    assert [found.cost for found in explanation.departures] == [41] * 9
    assert explanation.forest.num_tokens - explanation.cost == 103 + 41 + 20 + 9 * (20 + 620)


def test_what_is_left_of_the_forest_is_what_each_call_added() -> None:
    """The same conversation without the edits: what each turn added, once."""
    turns = [block(2 * at, 50) for at in range(8)]
    calls = [call([at, *chain.from_iterable(turns[: at + 1])], [50 + at]) for at in range(8)]
    explanation = merge(calls).explain()
    assert explanation.forest.num_tokens - explanation.cost == sum(map(len, turns)) + 2 * 8 - 7


@pytest.mark.parametrize("answer", [[5], [5, 6], [5, 6, 7]])
@pytest.mark.parametrize("following", [0, 3, 500])
def test_a_short_answer_without_its_reasoning_costs_no_more_than_itself(answer: list[int], following: int) -> None:
    class Reasoning:
        def decode(self, token_ids: list[int], /) -> str:
            texts = {1: "<|im_start|>assistant\n", 2: "<think>", 3: "</think>", 4: "<|im_end|>"}
            return "".join(texts.get(token, f" w{token}") for token in token_ids)

    thought = [2, *range(1000, 1400), 3]
    rest = list(range(2000, 2000 + following))
    earlier = Call([9, 1], [*thought, *answer, 4], [-1.0] * (len(thought) + len(answer) + 1))
    later = call([9, 1, *answer, 4, *rest], [8])
    (found,) = merge([earlier, later]).explain(Reasoning()).departures
    assert found.cause == "stripped_reasoning"
    assert found.cost == len(answer) + 1


@given(st.lists(st.sampled_from(CHANGES), max_size=8))
def test_no_more_is_repeated_than_the_earlier_call_has(changes: list[Change]) -> None:
    for one, other in (both(changes), both(changes)[::-1]):
        (found,) = merge([call(TRUNK + one, [0]), call(TRUNK + other, [0])]).explain().departures
        assert found.cost <= min(len(one), len(other))
