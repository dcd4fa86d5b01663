"""Models whose layers cannot share a forest are trained in linear rows, and exactly."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from family_reference import VOCAB, alone, batch, merged, one_thread, plain, relative_error
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ajet_core.errors import ConfigError
from ajet_merge import Call, Forest, PathTooLongError, merge
from ajet_server.models.supported import Level, sharing_of
from ajet_server.train.attention import ATTENTION
from ajet_server.train.linear import linear_packs, use_own_attention
from ajet_server.train.support import verify_exact

LEVELS = pytest.mark.parametrize("level", ["rows", "calls"])
MODELS: dict[str, dict[str, Any]] = {
    "Mamba": {"state_size": 4, "use_mambapy": False},
    "Jamba": {"num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4, "mamba_dt_rank": 2},
    "Qwen3Next": {
        "layer_types": ["linear_attention", "full_attention"],
        "head_dim": 8,
        "num_experts": 2,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
        "linear_num_value_heads": 2,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
}


def make(kind: str) -> Any:
    sizes: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**sizes | heads | MODELS[kind])
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    with one_thread():
        yield


_ids = st.lists(st.integers(0, 2), min_size=1, max_size=6)


@st.composite
def forests(draw: st.DrawFn) -> Forest:
    calls = [
        Call(draw(_ids), tail := draw(_ids), np.arange(len(tail)) - index, mask=[draw(st.integers(0, 1)) for _ in tail])
        for index in range(draw(st.integers(1, 6)))
    ]
    return merge(calls)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(forest=forests())
@LEVELS
def test_rows_are_one_path_each_and_partition_the_occurrences(level: Any, forest: Forest) -> None:
    packs = linear_packs(forest, 12, level)
    rows = [row.calls for row in forest.timelines()] if level == "rows" else [(i,) for i in range(len(forest.calls))]
    assert len(packs) == sum(any(forest.calls[call].trained.any() for call in row) for row in rows)
    index = np.concatenate([np.empty(0, np.int32), *(pack.occ_index for pack in packs)])
    assert np.array_equal(np.sort(index), np.arange(len(forest.occurrences)))
    for pack in packs:
        assert pack.num_segments == 1
        assert np.array_equal(pack.tokens, forest.tokens[pack.forest_index])
        assert np.array_equal(pack.forest_index[pack.occ_token], forest.occurrences.token[pack.occ_index])
        assert np.array_equal(pack.logprob, forest.occurrences.logprob[pack.occ_index])


@LEVELS
def test_a_call_that_is_too_long(level: Any) -> None:
    forest = merge([Call([1], [2], [0.0]), Call([1] * 5, [2, 3], [0.0] * 2, call_id="long")])
    with pytest.raises(PathTooLongError) as caught:
        linear_packs(forest, 6, level)
    assert (caught.value.call_index, caught.value.call_id, caught.value.length) == (1, "long", 7)
    assert len(linear_packs(forest, 7, level)) == 2


@pytest.mark.parametrize("kind", MODELS)
def test_gradients_of_models_with_a_state(kind: str) -> None:
    model = make(kind)
    assert sharing_of(model).level == "rows"
    wanted = alone(model, batch())
    use_own_attention(model)
    own = plain(model).config._attn_implementation
    rows = linear_packs(merge(batch()), 4096, "rows")
    assert len(rows) < len(batch())
    assert relative_error(merged(model, rows, "segments", own), wanted) < 1e-5


@pytest.mark.parametrize("kind", MODELS)
def test_the_probe_takes_rows_and_finds_that_a_forest_is_wrong(kind: str) -> None:
    model = make(kind)
    use_own_attention(model)
    verify_exact(model, "segments", "rows")
    with pytest.raises(ConfigError, match="changes log-probabilities"):
        verify_exact(model, "segments", "forest")


@pytest.mark.parametrize("level", ["forest", "rows"])
def test_the_probe_finds_a_token_that_changes_what_came_before(level: Level) -> None:
    """As experts that drop tokens by batch do; each call alone is exact even then."""
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        initializer_range=0.2,
        attn_implementation=ATTENTION,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.get_submodule("model.layers.0.mlp").register_forward_hook(lambda module, args, out: out + out.mean(1))
    with pytest.raises(ConfigError, match="changes log-probabilities"):
        verify_exact(model, "rectangles", level)
    verify_exact(model, "rectangles", "calls")
