"""Models that the engine would not compute exactly are refused by name."""

from typing import Any

import pytest
import torch
import transformers

from ajet_core.errors import ConfigError
from ajet_server.engines.attention import ATTENTION, engine_attention
from ajet_server.engines.supported import refuse_unsupported

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
        ("Qwen2", {"use_sliding_window": False, "sliding_window": 16}),
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
        ("Mistral", {"sliding_window": 64}, "64 tokens at a time"),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}, "sliding_window"),
        ("Gemma2", {}, "attn_logit_softcapping=50.0"),
        ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "'dynamic'"),
        ("Mamba", {}, "state-space"),
    ],
)
def test_models_that_are_not_are_refused(kind: str, config: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        refuse_unsupported(make(kind, **config), 128)
    assert caught.value.field == "model.path"


@pytest.mark.parametrize("extra", [{"softcap": 30.0}, {"s_aux": torch.zeros(1)}, {"attention_mask": torch.zeros(1)}])
def test_what_a_model_hands_to_attention_unforeseen_is_refused(extra: dict[str, Any]) -> None:
    tensor = torch.zeros(1, 1, 1, 4)
    with pytest.raises(ConfigError, match=next(iter(extra))):
        engine_attention(torch.nn.Module(), tensor, tensor, tensor, **{"attention_mask": None} | extra)


def test_transformers_makes_no_mask_for_the_engine() -> None:
    from transformers.masking_utils import create_causal_mask

    config = transformers.LlamaConfig(**SMALL, attn_implementation=ATTENTION)
    positions = torch.tensor([[0, 1, 0]])
    assert (
        create_causal_mask(
            config=config,
            inputs_embeds=torch.zeros(1, 3, 32),
            attention_mask=None,
            cache=None,
            position_ids=positions,
        )
        is None
    )
