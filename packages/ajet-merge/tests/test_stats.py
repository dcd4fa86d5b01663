"""What merging saved, in tokens, pairs and operations."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from merge_strategies import calls

from ajet_merge import Call, MergeError, ModelShape, merge
from ajet_merge.flops import Work

CONFIG: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 10,
}


@given(calls())
def test_pairs_are_what_attention_masks_let_through(made: list[Call]) -> None:
    forest = merge(made)
    q, k = np.arange(forest.num_tokens), np.arange(forest.num_tokens)[:, None]
    assert forest.stats.pairs_forest == ((k <= q) & (q < forest.subtree_end[:, None])).sum()
    assert forest.stats.pairs_unmerged == sum(np.tri(len(call)).sum() for call in made)
    assert forest.stats.pairs_linear == sum(np.tri(row.tokens.size).sum() for row in forest.timelines())
    assert forest.stats.predictors == len(set(forest.parent[forest.occurrences.token].tolist()))


def test_flops_are_counted_by_hand_for_a_small_model() -> None:
    shape = ModelShape.from_config(CONFIG)
    assert shape == ModelShape(2, 8, 16, 4, 2, 2, 10)
    linear = 2 * 2 * (8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16)  # two layers of q, k, v, o and the feed-forward part
    assert shape.training_flops(Work(tokens=5, pairs=0, predictions=0)) == 3 * 5 * linear
    assert shape.training_flops(Work(0, pairs=7, predictions=0)) == 3 * 7 * 2 * (4 * 2) * 2 * 2
    assert shape.training_flops(Work(0, 0, predictions=3)) == 3 * 3 * 2 * 8 * 10


def test_a_forest_of_equal_calls_costs_one_of_them_but_for_nothing() -> None:
    shape = ModelShape.from_config({"text_config": CONFIG | {"head_dim": 4, "num_key_value_heads": None}})
    assert (shape.kv_heads, shape.head_dim) == (4, 4)
    flops = merge([Call([1, 2], [3, 4], [-1, -1])] * 3).stats.flops(shape)
    assert flops.unmerged == flops.linear == 3 * flops.forest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "hidden_size = None: must be a positive integer"),
        ({"vocab_size": 0}, "vocab_size = 0"),
        ({"num_hidden_layers": True}, "num_hidden_layers = True"),
        ({"num_experts": 8}, "num_experts = 8: estimates are for dense models only"),
        ({"moe_num_experts": 8}, "moe_num_experts = 8: estimates are for dense models only"),
        ({"text_config": None}, "text_config = None: must be an object"),
    ],
)
def test_a_config_without_a_size_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(MergeError, match=message):
        ModelShape.from_config(CONFIG | change)


def test_a_shape_without_sizes_is_refused() -> None:
    with pytest.raises(MergeError, match="layers=-1: must be at least 1"):
        ModelShape(-1, 8, 16, 4, 2, 2, 10)


def test_siblings_need_the_logits_of_their_prompt_once() -> None:
    assert merge([Call([1, 2], [n], [-1]) for n in range(3, 9)]).stats.predictors == 1
