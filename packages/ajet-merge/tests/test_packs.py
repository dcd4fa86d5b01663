"""Packs: a partition of the occurrences, within the budget, each with its exact context."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from merge_strategies import calls, sequence

from ajet_merge import Call, CallError, Forest, MergeError, Pack, PathTooLongError, merge
from ajet_merge._balance import balance
from ajet_merge._cut import cut, find_leaves
from ajet_merge._segments import segments


def keys_of(pack: Pack, segment: int) -> list[int]:
    """The tokens a segment's queries may attend to, from the runs."""
    runs = range(pack.kv_ptr[segment], pack.kv_ptr[segment + 1])
    return [key for r in runs for key in range(pack.kv_run_start[r], pack.kv_run_start[r] + pack.kv_run_len[r])]


def ancestors(pack: Pack, token: int) -> list[int]:
    """By climbing, from the root down, the token itself last."""
    path: list[int] = []
    while token >= 0:
        path.append(token)
        token = int(pack.parent[token])
    return path[::-1]


def check_tree(pack: Pack) -> None:
    size = pack.num_tokens
    assert pack.pos.tolist() == [len(ancestors(pack, k)) - 1 for k in range(size)]
    sees = [[k for k in range(size) if k <= q < pack.subtree_end[k]] for q in range(size)]
    assert sees == [ancestors(pack, q) for q in range(size)]
    height = np.ones(size, np.int64)
    for k in range(size - 1, -1, -1):
        if pack.parent[k] >= 0:
            height[pack.parent[k]] = max(height[pack.parent[k]], height[k] + 1)
    for k in range(size):
        siblings = [q for q in range(size) if pack.parent[q] == k]
        assert siblings == sorted(siblings, key=lambda q: (-height[q], pack.tokens[q]))


def check_segments(pack: Pack) -> None:
    size, starts = pack.num_tokens, pack.seg_start.tolist()
    assert (starts[0], starts[-1], pack.kv_ptr[-1]) == (0, size, pack.kv_run_start.size)
    assert np.array_equal(pack.cu_seqlens_q, pack.seg_start)
    new_path = [k for k in range(size) if k == 0 or pack.parent[k] != k - 1]
    assert starts[:-1] == new_path  # maximal runs
    assert np.array_equal(pack.seg_attach, pack.parent[starts[:-1]])
    for s in range(pack.num_segments):
        keys = keys_of(pack, s)
        assert len(keys) == pack.cu_seqlens_k[s + 1] - pack.cu_seqlens_k[s]
        queries = range(starts[s], starts[s + 1])
        offset = len(keys) - len(queries)
        for i, query in enumerate(queries):  # causal, aligned at the bottom right
            assert keys[: offset + i + 1] == ancestors(pack, query)


def check_packs(forest: Forest, packs: list[Pack], budget: int) -> None:
    real = [pack for pack in packs if not pack.is_dummy]
    assert sorted(o for pack in real for o in pack.occ_index.tolist()) == list(range(len(forest.occurrences)))
    homes = [set(forest.occurrences.call[pack.occ_index].tolist()) for pack in real]
    assert sum(map(len, homes)) == len(set().union(*homes))  # no call is split
    training = [forest.path(call).tolist() for call in set(forest.occurrences.call.tolist())]
    assert {k for pack in real for k in pack.forest_index.tolist()} == {k for path in training for k in path}
    assert all(pack.occ_index.size for pack in packs)
    for pack in packs:
        assert 0 < pack.num_tokens <= budget
        check_tree(pack)
        check_segments(pack)
    for pack in real:
        assert np.array_equal(pack.tokens, forest.tokens[pack.forest_index])
        assert np.array_equal(pack.pos, forest.pos[pack.forest_index])
        check_occurrences(forest, pack)


def check_occurrences(forest: Forest, pack: Pack) -> None:
    found, chosen = forest.occurrences, pack.occ_index
    assert np.all(np.diff(chosen) > 0)
    assert np.array_equal(pack.forest_index[pack.occ_token], found.token[chosen])
    assert np.array_equal(pack.occ_predictor, pack.parent[pack.occ_token])
    assert np.array_equal(pack.occ_target, pack.tokens[pack.occ_token])
    for name in ("logprob", "advantage", "weight", "context_exact"):
        assert getattr(pack, name).tobytes() == getattr(found, name)[chosen].tobytes()
    for o, token in zip(chosen.tolist(), pack.occ_token.tolist(), strict=True):
        call = forest.calls[found.call[o]]
        context = sequence(call)[: call.prompt_ids.size + found.t[o] + 1]
        assert tuple(pack.tokens[ancestors(pack, token)].tolist()) == context


@given(calls(), st.integers(0, 12), st.integers(1, 4))
def test_packs_partition_the_occurrences_within_the_budget(made: list[Call], spare: int, ranks: int) -> None:
    forest = merge(made)
    budget = max(2, *map(len, made), 2) + spare
    packs = forest.packs(budget, ranks=ranks)
    check_packs(forest, packs, budget)
    by_rank = [[pack for pack in packs if pack.rank == rank] for rank in range(ranks)]
    assert len({len(of_rank) for of_rank in by_rank}) == 1
    assert sum(pack.is_dummy for pack in packs) < ranks
    assert [pack.rank for pack in packs] == sorted(pack.rank for pack in packs)


@given(calls(), st.integers(0, 12))
def test_the_weight_sum_does_not_depend_on_packing(made: list[Call], spare: int) -> None:
    forest = merge(made)
    total = forest.occurrences.weight.sum(dtype=np.float64)
    for budget in (max(2, *map(len, made), 2) + spare, 1000):
        assert sum(pack.weight.sum(dtype=np.float64) for pack in forest.packs(budget, ranks=3)) == total


@given(calls())
def test_a_pack_that_holds_all_is_the_forest(made: list[Call]) -> None:
    forest = merge([call for call in made if call.trained.any()])
    assume(forest.calls)
    (pack,) = forest.packs(1000)
    assert pack.forest_index.tolist() == list(range(forest.num_tokens))
    assert np.array_equal(pack.parent, forest.parent)
    assert np.array_equal(pack.subtree_end, forest.subtree_end)
    assert np.array_equal(pack.occ_index, np.arange(len(forest.occurrences)))


@given(calls(), st.integers(0, 8))
def test_cuts_repeat_as_few_tokens_as_possible(made: list[Call], spare: int) -> None:
    forest = merge(made)
    leaves, budget = find_leaves(forest.layout, forest.layout.call_node), max(map(len, made)) + spare
    count = len(leaves.node)

    def tokens(first: int, last: int) -> int:
        own = leaves.depth[first + 1 : last], leaves.shared[first + 1 : last]
        return leaves.depth[first] + sum(own[0]) - sum(own[1])

    @cache
    def fewest(first: int) -> int:
        ends = [last for last in range(first + 1, count + 1) if tokens(first, last) <= budget]
        return min((tokens(first, last) + fewest(last) for last in ends), default=0)

    pieces = cut(leaves, budget)
    assert [piece.first for piece in pieces] + [count] == [0] + [piece.last for piece in pieces]
    assert all(piece.tokens == tokens(piece.first, piece.last) <= budget for piece in pieces)
    assert sum(piece.tokens for piece in pieces) == fewest(0)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(1, 4))
def test_balance_gives_equal_counts_and_no_more_spread_than_the_dearest_item(costs: list[int], ranks: int) -> None:
    costs = [*costs, *[0] * (-len(costs) % ranks)]
    parts = balance(costs, ranks)
    assert sorted(item for part in parts for item in part) == list(range(len(costs)))
    assert {len(part) for part in parts} == {len(costs) // ranks}
    sums = [sum(costs[item] for item in part) for part in parts]
    assert max(sums) - min(sums) <= max(costs)


def test_balance_beats_dealing_in_turn() -> None:
    parts = balance([8, 7, 6, 5, 4, 3], 2)  # dealing in turn gives 18 and 15
    assert sorted(sum([8, 7, 6, 5, 4, 3][item] for item in part) for part in parts) == [16, 17]


def test_the_running_example() -> None:
    forest = merge([Call([1, 2, 3], [4, 5], [-1, -2]), Call([1, 2], [6], [-3]), Call([1, 2, 3], [7], [-4])])
    (pack,) = forest.packs(16)
    assert pack.tokens.tolist() == [1, 2, 3, 4, 5, 7, 6]
    assert pack.seg_start.tolist() == [0, 5, 6, 7]
    assert pack.seg_attach.tolist() == [-1, 2, 1]
    assert pack.cu_seqlens_k.tolist() == [0, 5, 9, 12]
    assert [keys_of(pack, s) for s in range(3)] == [[0, 1, 2, 3, 4], [0, 1, 2, 5], [0, 1, 6]]
    assert pack.kv_ptr.tolist() == [0, 1, 3, 5]
    assert pack.occ_predictor.tolist() == [2, 3, 1, 2]
    assert pack.occ_target.tolist() == [4, 5, 6, 7]


def test_a_forest_that_does_not_fit_repeats_its_trunk() -> None:
    made = [Call(range(10), [20 + n, 30], [-1, -2]) for n in range(4)]
    packs = merge(made).packs(14)
    assert [pack.num_tokens for pack in packs] == [14, 14]
    assert sum(len(pack.occ_index) for pack in packs) == 8


def test_ranks_without_work_get_dummies_that_run_but_weigh_nothing() -> None:
    packs = merge([Call([1], [2], [-1])]).packs(8, ranks=3)
    assert [pack.is_dummy for pack in packs] == [False, True, True]
    assert [pack.rank for pack in packs] == [0, 1, 2]
    for dummy in packs[1:]:
        assert dummy.tokens.tolist() == [0, 0]
        assert (dummy.weight.tolist(), dummy.occ_index.tolist(), dummy.cost) == ([0.0], [-1], 0.0)
        assert dummy.occ_predictor.tolist() == [0]


def test_costs_can_be_set() -> None:
    (pack,) = merge([Call([1, 2], [3], [-1])]).packs(8, token_cost=10, depth_cost=1)
    assert pack.cost == 3 * 10 + (1 + 2 + 3)


@pytest.mark.parametrize(("budget", "max_path", "name"), [(4, None, "budget"), (9, 4, "max_path"), (4, 9, "budget")])
def test_a_path_that_does_not_fit_is_refused_by_name(budget: int, max_path: int | None, name: str) -> None:
    forest = merge([Call([1], [2], [-1]), Call([1, 2, 3], [4, 5], [-1, -2], call_id="long")])
    with pytest.raises(PathTooLongError, match=rf"call 1 \('long'\): 5 tokens do not fit {name}=4") as caught:
        forest.packs(budget, max_path)
    assert (caught.value.call_index, caught.value.length, caught.value.limit) == (1, 5, 4)


@pytest.mark.parametrize("arguments", [{"budget": 1}, {"budget": 8, "max_path": 0}, {"budget": 8, "ranks": 0}])
def test_arguments_out_of_range_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(MergeError, match=f"{list(arguments)[-1]}="):
        merge([Call([1], [2], [-1])]).packs(**arguments)


def test_what_trains_nothing_is_not_run() -> None:
    masked, trained, extended = (
        Call([1, 2], [3], [-1], mask=[0]),
        Call([5, 2], [3], [-1]),
        Call([5, 2, 3, 4, 4, 4], [6], [-1], mask=[0]),
    )
    forest = merge([masked, trained, extended])
    pack, dummy = forest.packs(3, ranks=2)  # a budget that neither of the others needs to fit
    assert (pack.tokens.tolist(), pack.is_dummy, dummy.is_dummy) == ([5, 2, 3], False, True)
    assert merge([masked]).packs(8, ranks=2) == merge([]).packs(8, ranks=2) == []


def test_more_keys_than_int32_counts_are_refused() -> None:
    trunk = np.arange(-1, 32_999, dtype=np.int32)
    with pytest.raises(MergeError, match="2178066000 keys in all, more than int32 can count; use a smaller budget"):
        segments(np.concatenate([trunk, np.full(66_000, 32_999, np.int32)]))


def test_what_was_sampled_in_another_context_is_marked_on_each_of_its_occurrences() -> None:
    made = [Call([1, 2], [3, 4], [-1, -1]), Call([1, 2, 3, 4, 5], [6], [-1], context_exact=False)]
    forest = merge(made)
    assert forest.occurrences.context_exact.tolist() == [True, True, False]
    (pack, dummy) = forest.packs(10, ranks=2)
    assert pack.context_exact.tolist() == [True, True, False]
    assert dummy.context_exact.tolist() == [True]
    assert [row.context_exact for row in forest.timelines()] == [False]
    with pytest.raises(CallError, match="call 'c': context_exact = 1: must be True or False"):
        Call([1], [2], [-1], call_id="c", context_exact=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": None}, "budget=None: must be an integer"),
        ({"budget": "8"}, "budget='8': must be an integer"),
        ({"budget": 8.5}, r"budget=8\.5: must be an integer"),
        ({"budget": 8, "max_path": 2.5}, r"max_path=2\.5: must be an integer"),
        ({"budget": 8, "max_path": 0}, "max_path=0: must be at least 1"),
        ({"budget": 8, "ranks": True}, "ranks=True: must be an integer"),
        ({"budget": 8, "token_cost": float("nan")}, "token_cost=nan: must be a finite number, at least 0"),
        ({"budget": 8, "depth_cost": None}, "depth_cost=None: must be a finite number, at least 0"),
        ({"budget": 8, "depth_cost": -1.0}, r"depth_cost=-1\.0: must be a finite number, at least 0"),
    ],
)
def test_arguments_that_cannot_be_are_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(MergeError, match=message):
        merge([Call([1], [2], [-1])]).packs(**arguments)
