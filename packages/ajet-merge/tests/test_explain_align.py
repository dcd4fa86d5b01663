"""Where two sequences that parted are the same again."""

from itertools import pairwise
from time import process_time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_merge.explain.align import Run, align, heaviest_chain

RNG = np.random.default_rng(0)
TEXT = RNG.permutation(5000).astype(np.int32)


def ids(*parts: object) -> np.ndarray:
    return np.concatenate([np.asarray(part, np.int32) for part in parts])


@pytest.mark.parametrize("length", [20, 400, 5000])
def test_a_replaced_part(length: int) -> None:
    rest = TEXT[:length]
    assert align(ids([9001], rest, [7, 7]), ids([9002, 9003], rest)) == [Run(1, 2, length)]


@pytest.mark.parametrize("gap", [1, 100, 2000])
def test_removed_and_inserted_parts(gap: int) -> None:
    long = ids(np.arange(10_000, 10_000 + gap), TEXT)
    assert align(TEXT, long) == [Run(0, gap, TEXT.size)]
    assert align(long, TEXT) == [Run(gap, 0, TEXT.size)]


def test_many_small_changes() -> None:
    changed = TEXT.copy()
    changed[::50] = 6000
    runs = align(changed, TEXT)
    assert [run.length for run in runs] == [49] * 100
    assert all(run.new == run.gone for run in runs)


def test_a_part_that_moved_does_not_hide_what_stayed() -> None:
    moved, stayed = TEXT[:40], TEXT[40:1000]
    assert align(ids(moved, stayed), ids([9000], stayed, moved)) == [Run(40, 1, stayed.size)]


def test_markers_that_stand_around_everything_are_no_content() -> None:
    markers = [1, 2, 3, 4, 5]
    assert align(ids(TEXT[:100], markers, TEXT[100:200]), ids(TEXT[200:300], markers, TEXT[300:400])) == []


def test_hash_windows_of_random_tokens_in_a_reasonable_time() -> None:
    ours, theirs = RNG.integers(0, 50_000, (2, 200_000)).astype(np.int32)
    assert align(ours, theirs) == []


@given(st.data())
def test_runs_are_equal_and_ascend_and_cannot_be_longer(data: st.DataObject) -> None:
    pieces = data.draw(st.lists(st.lists(st.integers(0, 30), max_size=12), max_size=8))
    keep = [data.draw(st.lists(st.booleans(), min_size=len(pieces), max_size=len(pieces))) for _ in range(2)]
    ours, theirs = (ids([], *(p for p, kept in zip(pieces, side, strict=True) if kept)) for side in keep)
    last = Run(0, 0, 0)
    for run in align(ours, theirs):
        assert run.length > 0
        assert ours[run.new : run.new_end].tolist() == theirs[run.gone : run.gone_end].tolist()
        assert run.new >= last.new_end
        assert run.gone >= last.gone_end
        if run.new_end < ours.size and run.gone_end < theirs.size:
            assert ours[run.new_end] != theirs[run.gone_end]
        last = run


def band_chain_weight(first: list[int], last: list[int], weight: list[int]) -> int:
    """The weight of the heaviest chain, by trying each band after each other."""
    best = list[int]()
    for at, own in enumerate(weight):
        best.append(own + max((best[before] for before in range(at) if last[before] < first[at]), default=0))
    return max(best)


@given(st.permutations(range(12)), st.lists(st.integers(1, 40), min_size=12, max_size=12))
def test_the_heaviest_chain_is_found(order: list[int], lengths: list[int]) -> None:
    """Bands are apart in theirs or overlap by less than a window, as those of unique windows do."""
    ends = np.cumsum([length + 3 for length in lengths])
    first = np.array([ends[at] - lengths[at] - 3 for at in order])
    last = first + np.array([lengths[at] - 1 for at in order])
    weight = np.array([lengths[at] for at in order])
    chain = heaviest_chain(first, last, weight)
    assert chain == sorted(set(chain))
    assert all(last[one] < first[other] for one, other in pairwise(chain))
    assert weight[chain].sum() == band_chain_weight(first.tolist(), last.tolist(), weight.tolist())


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), st.integers(1, 9)), min_size=1, max_size=30))
def test_the_heaviest_chain_of_bands_that_overlap(bands: list[tuple[int, int, int]]) -> None:
    first, length, weight = (np.array(column) for column in zip(*bands, strict=True))
    chain = heaviest_chain(first, first + length, weight)
    assert all((first + length)[one] < first[other] for one, other in pairwise(chain))
    expected = band_chain_weight(first.tolist(), (first + length).tolist(), weight.tolist())
    assert weight[chain].sum() == expected


def test_shuffled_blocks_in_a_reasonable_time() -> None:
    """Each of 50,000 blocks is a band of its own. Comparing each with each would take minutes."""
    theirs = np.arange(400_000, dtype=np.int32)
    ours = theirs.reshape(-1, 8)[RNG.permutation(50_000)].ravel()
    started = process_time()
    assert align(ours, theirs) is not None
    assert process_time() - started < 10
