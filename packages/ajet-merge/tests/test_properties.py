"""The properties that merging promises, numbered as in its specification; 8 and 9, on gradients, need a model."""

from dataclasses import replace

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from merge_strategies import calls, maximal, prefixes, sequence, token_keys

from ajet_merge import Call, Forest, Tracker, merge

Row = tuple[int, int, int, bytes]


def tree(forest: Forest) -> list[list[int]]:
    """The forest without its calls."""
    return [array.tolist() for array in (forest.tokens, forest.pos, forest.parent, forest.subtree_end)]


def occurrence_rows(forest: Forest, names: list[int]) -> list[Row]:
    """Every occurrence: whose, which, where, and its three numbers to the bit; `names` are the calls' own numbers."""
    found = forest.occurrences
    numbers = np.stack([found.logprob, found.advantage, found.weight], axis=1)
    columns = found.call.tolist(), found.t.tolist(), found.token.tolist(), numbers
    return sorted((names[c], t, token, row.tobytes()) for c, t, token, row in zip(*columns, strict=True))


def trained_tokens(call: Call) -> list[int]:
    """The indices in the completion of what must become an occurrence."""
    return [t for t in range(call.completion_ids.size) if call.mask[t] and call.prompt_ids.size + t > 0]


def smallest_budget(made: list[Call]) -> int:
    return max(2, *map(len, made), 2)


def without_prompt(call: Call) -> Call:
    """The same tokens, all of them sampled, and those of the prompt trained too."""
    before = np.ones(call.prompt_ids.size, np.float32)
    names = "logprobs", "advantage", "weight"
    floats = {name: np.concatenate([before, getattr(call, name)]) for name in names}
    mask = np.concatenate([before.astype(np.uint8), call.mask])
    return replace(call, prompt_ids=[], completion_ids=list(sequence(call)), mask=mask, **floats)


@given(calls())
def test_property_1_every_call_is_rebuilt_from_its_path(made: list[Call]) -> None:
    forest = merge(made)
    for index, call in enumerate(made):
        path = forest.path(index)
        assert tuple(forest.tokens[path].tolist()) == sequence(call)
        assert forest.pos[path].tolist() == list(range(len(call)))
        assert forest.parent[path].tolist() == [-1, *path[:-1].tolist()]


@given(calls())
def test_property_2_occurrences_of_a_call_are_its_unmasked_tokens_bit_for_bit(made: list[Call]) -> None:
    forest = merge(made)
    found = forest.occurrences
    for index, call in enumerate(made):
        own, trained = found.call == index, trained_tokens(call)
        assert found.t[own].tolist() == trained
        assert found.token[own].tolist() == forest.path(index)[[call.prompt_ids.size + t for t in trained]].tolist()
        assert found.logprob[own].tobytes() == call.logprobs[trained].tobytes()
        assert found.advantage[own].tobytes() == call.advantage[trained].tobytes()
        assert found.weight[own].tobytes() == call.weight[trained].tobytes()
    pairs = list(zip(found.call.tolist(), found.t.tolist(), strict=True))
    assert len(pairs) == len(set(pairs)) == sum(len(trained_tokens(call)) for call in made)


@given(calls())
def test_property_3_size_is_the_number_of_distinct_prefixes(made: list[Call]) -> None:
    forest = merge(made)
    assert forest.num_tokens == len(prefixes(made))
    assert set(token_keys(forest)) == prefixes(made)


@given(calls())
def test_property_3_rows_are_the_maximal_sequences_when_no_trained_tokens_overlap(made: list[Call]) -> None:
    forest = merge(made)
    assume(np.unique(forest.occurrences.token).size == len(forest.occurrences))
    found = [(made[row.calls[0]].compat_key, tuple(row.tokens.tolist())) for row in forest.timelines()]
    assert len(found) == len(set(found))
    assert set(found) == maximal(made)


@given(calls())
def test_property_4_subtree_end_tells_ancestors(made: list[Call]) -> None:
    forest = merge(made)
    parent = forest.parent.tolist()
    for q in range(forest.num_tokens):
        above, k = {q}, parent[q]
        while k >= 0:
            above.add(k)
            k = parent[k]
        assert {k for k in range(forest.num_tokens) if k <= q < forest.subtree_end[k]} == above


@given(st.data())
def test_property_5_any_order_gives_the_same_forest_and_occurrences(data: st.DataObject) -> None:
    made = data.draw(calls())
    order = data.draw(st.permutations(range(len(made))))
    forest, shuffled = merge(made), merge([made[index] for index in order])
    assert tree(forest) == tree(shuffled)
    assert occurrence_rows(forest, list(range(len(made)))) == occurrence_rows(shuffled, order)
    assert [forest.path(index).tolist() for index in order] == [shuffled.path(n).tolist() for n in range(len(made))]


@given(calls(), st.integers(1, 4))
def test_property_5_incremental_is_batch(made: list[Call], step: int) -> None:
    tracker = Tracker()
    for first in range(0, len(made), step):
        tracker.add_all(made[first : first + step])
        forest, batch = tracker.forest(), merge(made[: first + step])
        names = list(range(len(forest.calls)))
        assert tree(forest) == tree(batch)
        assert occurrence_rows(forest, names) == occurrence_rows(batch, names)


@given(calls())
def test_property_5_merging_again_changes_nothing(made: list[Call]) -> None:
    forest, names = merge(made), list(range(len(made)))
    again, doubled = merge(forest.calls), merge([*made, *made])
    assert tree(forest) == tree(again) == tree(doubled)
    assert occurrence_rows(forest, names) == occurrence_rows(again, names)
    assert len(doubled.occurrences) == 2 * len(forest.occurrences)  # the forward pass is shared, losses never are


@given(calls(), st.integers(0, 12), st.integers(1, 4))
def test_property_6_packs_partition_the_occurrences_within_the_budget(made: list[Call], more: int, ranks: int) -> None:
    forest, budget = merge(made), smallest_budget(made) + more
    packs = forest.packs(budget, ranks=ranks)
    assert all(pack.num_tokens <= budget for pack in packs)
    real = [pack for pack in packs if not pack.is_dummy]
    placed = [index for pack in real for index in pack.occ_index.tolist()]
    assert sorted(placed) == list(range(len(forest.occurrences)))
    for pack in real:
        assert pack.forest_index[pack.occ_token].tolist() == forest.occurrences.token[pack.occ_index].tolist()


@given(calls(), st.integers(0, 12), st.integers(1, 4))
def test_property_6_the_weight_sum_does_not_depend_on_packing(made: list[Call], more: int, ranks: int) -> None:
    forest = merge(made)
    total = sum(call.weight[trained_tokens(call)].sum(dtype=np.float64) for call in made)
    packs = forest.packs(smallest_budget(made) + more, ranks=ranks)
    assert sum(pack.weight.sum(dtype=np.float64) for pack in packs) == total
    assert sum(row.weight.sum(dtype=np.float64) for row in forest.timelines()) == total


@given(calls())
def test_property_7_different_compat_keys_never_share(made: list[Call]) -> None:
    forest = merge(made)
    owners: dict[int, set[str]] = {}
    for index, call in enumerate(made):
        for token in forest.path(index).tolist():
            owners.setdefault(token, set()).add(call.compat_key)
    assert all(len(keys) == 1 for keys in owners.values())
    apart = [merge([call for call in made if call.compat_key == key]) for key in {call.compat_key for call in made}]
    assert forest.num_tokens == sum(part.num_tokens for part in apart)


@given(calls(), st.data())
def test_property_7_an_empty_completion_adds_nothing(made: list[Call], data: st.DataObject) -> None:
    base = data.draw(st.sampled_from(made))
    known = sequence(base)[: data.draw(st.integers(1, len(base)))]
    forest, more = merge(made), merge([*made, Call(known, [], [], compat_key=base.compat_key)])
    names = list(range(len(made) + 1))
    assert tree(forest) == tree(more)
    assert occurrence_rows(forest, names) == occurrence_rows(more, names)


@given(calls())
def test_property_7_a_first_token_without_predictor_is_excluded_and_counted(made: list[Call]) -> None:
    bare = [without_prompt(call) for call in made]
    forest = merge(bare)
    assert forest.stats.excluded == sum(bool(call.mask[0]) for call in bare)
    assert len(forest.occurrences) + forest.stats.excluded == sum(int(call.mask.sum()) for call in bare)
    assert (forest.parent[forest.occurrences.token] >= 0).all()
