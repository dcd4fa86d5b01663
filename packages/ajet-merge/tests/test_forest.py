"""The merged forest: shape, order, occurrences."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from merge_strategies import calls, prefixes, sequence, token_keys

from ajet_merge import Call, Forest, MergeError, Tracker, merge


@given(calls())
def test_occurrences_are_the_unmasked_tokens_in_order(made: list[Call]) -> None:
    forest = merge(made)
    found = forest.occurrences
    rows = zip(found.call.tolist(), found.t.tolist(), strict=True)
    expected = [
        (index, t)
        for index, call in enumerate(made)
        for t in range(call.completion_ids.size)
        if call.mask[t] and (call.prompt_ids.size or t)
    ]
    assert list(rows) == expected
    for name in ("logprob", "advantage", "weight"):
        field = "logprobs" if name == "logprob" else name
        wanted = np.array([getattr(made[index], field)[t] for index, t in expected], np.float32)
        assert getattr(found, name).tobytes() == wanted.tobytes()
    for token, (index, t) in zip(found.token.tolist(), expected, strict=True):
        assert token == forest.path(index)[made[index].prompt_ids.size + t]
        assert forest.parent[token] >= 0


@given(calls())
def test_subtree_end_says_who_is_an_ancestor(made: list[Call]) -> None:
    forest = merge(made)
    keys = token_keys(forest)
    for k, (key, above) in enumerate(keys):
        for q, (other_key, below) in enumerate(keys):
            is_ancestor_or_self = key == other_key and below[: len(above)] == above
            assert (k <= q < forest.subtree_end[k]) == is_ancestor_or_self


@given(calls())
def test_longest_child_first_then_by_token(made: list[Call]) -> None:
    forest = merge(made)
    height = [0] * forest.num_tokens
    for k in range(forest.num_tokens - 1, -1, -1):
        height[k] += 1
        if forest.parent[k] >= 0:
            height[forest.parent[k]] = max(height[forest.parent[k]], height[k])
    keys = token_keys(forest)
    siblings: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for k in range(forest.num_tokens):
        family = (keys[k][0], int(forest.parent[k]))
        siblings.setdefault(family, []).append((-height[k], int(forest.tokens[k])))
    assert all(order == sorted(order) for order in siblings.values())
    assert [key for key, _ in keys] == sorted(key for key, _ in keys)


def same_arrays(one: Forest, other: Forest) -> bool:
    names = ("tokens", "pos", "parent", "subtree_end")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


@given(calls(), st.randoms(use_true_random=False))
def test_any_order_gives_the_same_forest_and_occurrences(made: list[Call], random: object) -> None:
    order = list(range(len(made)))
    random.shuffle(order)  # type: ignore[attr-defined]
    forest, shuffled = merge(made), merge([made[index] for index in order])
    assert same_arrays(forest, shuffled)

    def rows(given_forest: Forest, names: list[int]) -> set[tuple[int, ...]]:
        found = given_forest.occurrences
        return {
            (names[call], t, token)
            for call, t, token in zip(found.call.tolist(), found.t.tolist(), found.token.tolist(), strict=True)
        }

    assert rows(forest, list(range(len(made)))) == rows(shuffled, order)


@given(calls())
def test_incremental_is_batch(made: list[Call]) -> None:
    tracker = Tracker()
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for count, call in enumerate(made, 1):
        longest = max(n for n in range(len(call) + 1) if n == 0 or (call.compat_key, sequence(call)[:n]) in seen)
        assert tracker.add(call) == longest
        seen |= prefixes([call])
        assert same_arrays(tracker.forest(), merge(made[:count]))
    assert len(tracker) == len(made)


@given(calls())
def test_merging_again_changes_nothing(made: list[Call]) -> None:
    forest = merge(made)
    assert same_arrays(forest, merge(forest.calls))
    assert same_arrays(forest, merge([*made, *made]))


def test_an_empty_completion_adds_no_occurrence() -> None:
    forest = merge([Call([1, 2], [], [])])
    assert forest.tokens.tolist() == [1, 2]
    assert len(forest.occurrences) == 0


def test_a_first_token_without_predictor_is_excluded_and_counted() -> None:
    made = [Call([], [5, 6], [-1, -2]), Call([], [5, 6], [-1, -2], mask=[0, 1]), Call([5], [6], [-1])]
    forest = merge(made)
    assert forest.stats.excluded == 1
    assert list(zip(forest.occurrences.call, forest.occurrences.t, strict=True)) == [(0, 1), (1, 1), (2, 0)]


def test_a_small_forest_in_full() -> None:
    forest = merge([Call([1, 2], [3], [-1]), Call([1, 2], [4, 5], [-1, -2]), Call([1, 2, 3], [6], [-3])])
    assert forest.tokens.tolist() == [1, 2, 3, 6, 4, 5]
    assert forest.pos.tolist() == [0, 1, 2, 3, 2, 3]
    assert forest.parent.tolist() == [-1, 0, 1, 2, 1, 4]
    assert forest.subtree_end.tolist() == [6, 6, 4, 4, 6, 6]
    assert forest.occurrences.token.tolist() == [2, 4, 5, 3]
    stats = forest.stats
    assert (stats.tokens_unmerged, stats.tokens_linear, stats.tokens_forest) == (11, 8, 6)
    assert (stats.calls, stats.occurrences, stats.excluded) == (3, 4, 0)


def test_no_calls_give_an_empty_forest() -> None:
    forest = merge([])
    assert (forest.num_tokens, len(forest.occurrences), forest.timelines(), forest.packs(8, ranks=2)) == (0, 0, [], [])
    assert forest.pos.size == forest.parent.size == forest.subtree_end.size == 0
    assert forest.stats.tokens_linear == 0


def test_a_later_add_leaves_an_earlier_forest_alone() -> None:
    tracker = Tracker()
    tracker.add(Call([1, 2, 3], [4], [-1]))
    forest = tracker.forest()
    before = forest.tokens.copy()
    tracker.add(Call([1, 2, 9], [4], [-1]))
    assert np.array_equal(forest.tokens, before)
    assert len(forest.calls) == 1


def test_what_is_not_a_call_is_refused() -> None:
    with pytest.raises(MergeError, match=r"calls\[1\] is a dict"):
        merge([Call([1], [2], [-1]), {"prompt_ids": [1]}])  # type: ignore[list-item]
