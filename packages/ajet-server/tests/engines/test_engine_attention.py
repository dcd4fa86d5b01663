"""The engine's attention refuses what it does not compute, and needs no mask of transformers'."""

from typing import Any

import pytest
import torch
import transformers

from ajet_core.errors import ConfigError
from ajet_server.engines.attention import ATTENTION, engine_attention


@pytest.mark.parametrize("extra", [{"softcap": 30.0}, {"s_aux": torch.zeros(1)}, {"attention_mask": torch.zeros(1)}])
def test_what_a_model_hands_to_attention_unforeseen_is_refused(extra: dict[str, Any]) -> None:
    tensor = torch.zeros(1, 1, 1, 4)
    with pytest.raises(ConfigError, match=next(iter(extra))):
        engine_attention(torch.nn.Module(), tensor, tensor, tensor, **{"attention_mask": None} | extra)


def test_transformers_makes_no_mask_for_the_engine() -> None:
    from transformers.masking_utils import create_causal_mask

    config = transformers.LlamaConfig(hidden_size=32, num_attention_heads=2, attn_implementation=ATTENTION)
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
