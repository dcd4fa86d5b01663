"""Linear rows: exact, and as few as possible."""

import numpy as np
from hypothesis import assume, given
from merge_strategies import calls, maximal, sequence, trained_positions

from ajet_merge import Call, Forest, merge


def check_rows(forest: Forest) -> None:
    rows = forest.timelines()
    assert sorted(call for row in rows for call in row.calls) == list(range(len(forest.calls)))
    assert sorted(o for row in rows for o in row.occurrences.tolist()) == list(range(len(forest.occurrences)))
    for row in rows:
        assert np.array_equal(row.tokens, forest.tokens[row.path])
        assert max(len(forest.calls[call]) for call in row.calls) == row.tokens.size
        for call in row.calls:
            length = len(forest.calls[call])
            assert tuple(row.tokens[:length].tolist()) == sequence(forest.calls[call])
        assert np.all(np.diff(row.positions) > 0)  # no position is trained twice
        assert np.array_equal(row.path[row.positions], forest.occurrences.token[row.occurrences])
        assert set(forest.occurrences.call[row.occurrences].tolist()) <= set(row.calls)


@given(calls())
def test_each_call_is_owned_once_and_no_position_is_trained_twice(made: list[Call]) -> None:
    check_rows(merge(made))


def can_share(a: Call, b: Call) -> bool:
    shorter, longer = sorted((a, b), key=len)
    nested = a.compat_key == b.compat_key and sequence(longer)[: len(shorter)] == sequence(shorter)
    return nested and not trained_positions(a) & trained_positions(b)


def fewest_rows(made: list[Call]) -> int:
    """By trying every way to put calls into rows."""

    def place(index: int, rows: list[list[Call]], best: int) -> int:
        if len(rows) >= best:
            return best
        if index == len(made):
            return len(rows)
        for row in rows:
            if all(can_share(made[index], other) for other in row):
                row.append(made[index])
                best = place(index + 1, rows, best)
                row.pop()
        rows.append([made[index]])
        best = place(index + 1, rows, best)
        rows.pop()
        return best

    return place(0, [], len(made) + 1)


@given(calls(masks=False))
def test_there_are_no_more_rows_than_needed(made: list[Call]) -> None:
    assert len(merge(made).timelines()) == fewest_rows(made)


@given(calls())
def test_rows_are_the_maximal_sequences_when_no_trained_tokens_overlap(made: list[Call]) -> None:
    forest = merge(made)
    assume(len(set(forest.occurrences.token.tolist())) == len(forest.occurrences))
    rows = forest.timelines()
    assert len(rows) == len(maximal(made)) == fewest_rows(made)
    assert {tuple(row.tokens.tolist()) for row in rows} == {seq for _, seq in maximal(made)}


def test_a_token_trained_twice_opens_a_second_row() -> None:
    made = [Call([1], [2, 3], [-1, -2]), Call([1], [2, 3], [-1, -2]), Call([1, 2, 3, 4], [5], [-1])]
    assert [row.calls for row in merge(made).timelines()] == [(1,), (0, 2)]


def test_a_mask_with_holes_lets_two_calls_share_a_row() -> None:
    whole = Call([1], [2, 3, 4, 5], [-1] * 4, mask=[0, 0, 1, 1])
    inner = Call([1], [2, 3], [-1] * 2)
    around = Call([1], [2, 3, 4, 5, 6], [-1] * 5, mask=[1, 1, 0, 0, 1])
    assert [row.calls for row in merge([whole, inner, around]).timelines()] == [(1,), (0, 2)]


def test_calls_that_train_nothing_share_a_row() -> None:
    made = [Call([1, 2], [3], [-1], mask=[0])] * 3
    forest = merge(made)
    check_rows(forest)
    assert [row.calls for row in forest.timelines()] == [(0, 1, 2)]
