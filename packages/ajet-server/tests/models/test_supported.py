"""Models that are not computed exactly are refused by name, and the advice helps."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from folder_helpers import make_folder

from ajet_core.config import EngineConfig
from ajet_core.errors import ConfigError
from ajet_server.models.folder import max_model_len, open_model_folder
from ajet_server.models.supported import refuse_unsupported, refuse_untrainable, sharing_of, windowed_layers

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "pad_token_id": 0,
}


def make(kind: str, **config: Any) -> transformers.PreTrainedModel:
    """Makes a tiny model of a kind, without weights."""
    with torch.device("meta"):
        settings = getattr(transformers, f"{kind}Config")(**SMALL | config)
        return getattr(transformers, f"{kind}ForCausalLM")(settings)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("Llama", {}),
        ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}),
        ("Qwen2", {}),
        ("Qwen2", {"use_sliding_window": False, "sliding_window": 16}),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2}),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 1}),
        ("Qwen3", {}),
        ("Mistral", {"sliding_window": None}),
        ("Mistral", {"sliding_window": 128}),
    ],
)
def test_models_that_are_exact_are_taken(kind: str, config: dict[str, Any]) -> None:
    refuse_unsupported(make(kind, **config), 128)


@pytest.mark.parametrize(
    ("kind", "config", "reason"),
    [
        ("Mistral", {"sliding_window": 64}, "64 tokens at a time .*; set engine.max_model_len to 64 or less"),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}, "16 tokens at a time"),
        ("Gemma2", {}, "attn_logit_softcapping=50.0"),
        ("Gemma2", {"attn_logit_softcapping": None}, "final_logit_softcapping=30.0"),
        ("Llama", {"attention_dropout": 0.1}, "attention_dropout=0.1; set it to 0"),
        ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "'dynamic'"),
        ("Qwen3Next", {"num_experts": 2, "linear_num_value_heads": 2, "linear_num_key_heads": 2}, "linear_attention"),
        ("Jamba", {"num_experts": 2}, "recurrent"),
        ("Mamba", {}, "recurrent"),
    ],
)
def test_models_that_are_not_are_refused(kind: str, config: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        refuse_unsupported(make(kind, **config), 128)
    assert caught.value.field == "model.path"


GEMMA2: dict[str, Any] = {"query_pre_attn_scalar": 16}
QWEN3_NEXT: dict[str, Any] = {"num_experts": 2, "linear_num_value_heads": 2, "linear_num_key_heads": 2}


@pytest.mark.parametrize(
    ("kind", "config", "level", "reason"),
    [
        ("Llama", {}, "forest", ""),
        ("Mistral", {"sliding_window": 64}, "forest", ""),
        ("Gemma2", GEMMA2, "forest", ""),
        ("Gemma3", {}, "forest", ""),
        ("Qwen3Moe", {"num_experts": 2, "moe_intermediate_size": 8}, "forest", ""),
        ("Mamba", {}, "rows", "recurrent state"),
        ("Jamba", {"num_experts": 2}, "rows", "recurrent state"),
        ("Qwen3Next", QWEN3_NEXT, "rows", "linear_attention"),
        ("Llama", {"alibi": True}, "rows", "alibi=True"),
        ("Llama", {"attention_chunk_size": 8}, "rows", "chunks of 8"),
        ("Llama", {"expert_capacity": 4}, "calls", "expert_capacity=4"),
    ],
)
def test_what_a_model_can_share(kind: str, config: dict[str, Any], level: str, reason: str) -> None:
    if kind == "Gemma3":
        model: Any = transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**SMALL | config))
    else:
        model = make(kind, **config)
    sharing = sharing_of(model)
    assert sharing.level == level
    assert reason in sharing.reason
    assert bool(reason) == bool(sharing.reason)
    refuse_untrainable(model)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"attention_dropout": 0.1}, "cannot be trained exactly: it has attention_dropout=0.1; set it to 0"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "'dynamic'"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
    ],
)
def test_what_no_row_makes_exact_is_not_trained(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        refuse_untrainable(make("Llama", **config))
    assert caught.value.field == "model.path"


@pytest.mark.parametrize(
    ("kind", "config", "layers"),
    [
        ("Llama", {}, None),
        ("Qwen2", {"use_sliding_window": False, "sliding_window": 16}, None),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}, (1, 16)),
        ("Mistral", {"sliding_window": 64}, (2, 64)),
        ("Mistral", {"sliding_window": None}, None),
        ("Gemma2", {"sliding_window": 8}, (1, 8)),
    ],
)
def test_layers_with_a_window(kind: str, config: dict[str, Any], layers: tuple[int, int] | None) -> None:
    assert windowed_layers(make(kind, **config).config) == layers


def test_the_longest_sequence_must_be_known(tmp_path: Path) -> None:
    folder = open_model_folder(make_folder(tmp_path))
    with pytest.raises(ConfigError, match="has no max_position_embeddings; set it"):
        max_model_len(folder, EngineConfig())
    assert max_model_len(folder, EngineConfig(max_model_len=7)) == 7
