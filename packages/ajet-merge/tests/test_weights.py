"""Weights: the sum over all occurrences is the mean it is named after."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from merge_strategies import calls

from ajet_merge import Call, CallError, MergeError, episode_mean, group_mean, merge, sequence_mean, token_mean
from ajet_merge.weights import fixed_length_mean, unit_mean


def by_adapter(made: Sequence[Call]) -> list[np.ndarray]:
    return unit_mean(made, [call.compat_key for call in made])


UNITS: list[tuple[Callable[[Sequence[Call]], list[np.ndarray]], Callable[[int, Call], object]]] = [
    (token_mean, lambda index, call: None),
    (sequence_mean, lambda index, call: index),
    (episode_mean, lambda index, call: call.episode_id),
    (group_mean, lambda index, call: call.group_id),
    (by_adapter, lambda index, call: call.compat_key),
]


@pytest.mark.parametrize(("weigh", "unit"), UNITS, ids=["token", "sequence", "episode", "group", "unit"])
@given(made=calls())
def test_the_weighted_sum_is_the_mean_of_unit_means(
    weigh: Callable[[Sequence[Call]], list[np.ndarray]], unit: Callable[[int, Call], object], made: list[Call]
) -> None:
    weights = weigh(made)
    assert [w.dtype for w in weights] == [np.float32] * len(made)
    losses: dict[object, list[float]] = {}
    for index, call in enumerate(made):
        assert not weights[index][~call.trained].any()
        found = np.cos(call.logprobs[call.trained], dtype=np.float64).tolist()
        if found:
            losses.setdefault(unit(index, call), []).extend(found)
    wanted = np.mean([np.mean(of_unit) for of_unit in losses.values()]) if losses else 0.0
    forest = merge([replace(call, weight=w) for call, w in zip(made, weights, strict=True)])
    total = (forest.occurrences.weight * np.cos(forest.occurrences.logprob, dtype=np.float64)).sum()
    assert np.isclose(total, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("weigh", "field"), [(episode_mean, "episode_id"), (group_mean, "group_id")])
def test_a_mean_over_units_needs_their_names(weigh: Callable[..., object], field: str) -> None:
    with pytest.raises(CallError, match=f"call 'x': {field} is empty"):
        weigh([Call([1], [2], [-1], call_id="x")])
    weigh([Call([1], [2], [-1], mask=[0], call_id="x")])  # trains nothing, so it belongs to no mean


def test_an_episode_weighs_the_same_however_it_is_cut_into_calls() -> None:
    whole = [Call([1], [2, 3, 4, 5], [-1] * 4, episode_id="a"), Call([9], [8], [-1], episode_id="b")]
    parts = [Call([1], [2, 3], [-1] * 2, episode_id="a"), Call([1, 2, 3], [4, 5], [-1] * 2, episode_id="a"), whole[1]]
    assert np.concatenate(episode_mean(whole)).tolist() == np.concatenate(episode_mean(parts)).tolist()
    assert np.concatenate(sequence_mean(whole)).tolist() != np.concatenate(sequence_mean(parts)).tolist()


@given(made=calls(), length=st.integers(1, 50))
def test_with_a_fixed_length_every_token_weighs_the_same_whatever_its_sequence(made: list[Call], length: int) -> None:
    sequences = sum(call.trained.any() for call in made)
    for call, weight in zip(made, fixed_length_mean(made, length), strict=True):
        assert weight.dtype == np.float32
        assert not weight[~call.trained].any()
        assert np.allclose(weight[call.trained], 1 / (max(sequences, 1) * length))


def test_what_cannot_be_a_mean_is_refused() -> None:
    made = [Call([1], [2], [-1.0])]
    with pytest.raises(MergeError, match="length=0"):
        fixed_length_mean(made, 0)
    with pytest.raises(MergeError, match="2 entries for 1 calls"):
        unit_mean(made, ["a", "b"])


def test_calls_may_come_from_a_generator() -> None:
    made = [Call([1], [2, 3], [-1, -1]), Call([4], [5], [-1])]
    assert [w.tolist() for w in token_mean(call for call in made)] == [w.tolist() for w in token_mean(made)]  # type: ignore[arg-type]
