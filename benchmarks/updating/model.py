"""The model of the benchmark: a random Llama built in memory."""

from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from .cases import VOCABULARY

CONFIG: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
"""3.1M weights in the layers. Where a quarter of the tokens is trained, the output layer takes about a tenth of the
arithmetic, as in models of 8e9 weights with vocabularies of 150,000."""


def make_model(attention: str, double: bool = False, **changes: Any) -> PreTrainedModel:
    """The model, the same weights each time.

    Args:
        attention: the attention function, as transformers names it.
        double: float64 throughout.
        **changes: to `CONFIG`.
    """
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**(CONFIG | changes)))
    model.set_attn_implementation(attention)
    return (_doubled(model) if double else model).eval()


class _Rotary(nn.Module):
    """Rotary angles in float64; transformers computes them in float32 whatever the weights are."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.register_buffer("inv_freq", original.inv_freq.double())

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inv_freq: Any = self.inv_freq
        angles = position_ids[..., None].double() * inv_freq
        angles = torch.cat([angles, angles], -1)
        return angles.cos(), angles.sin()


def _doubled(model: Any) -> Any:
    """transformers' norm and rotary embedding go through float32; replacements in float64 take their place."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__ == "LlamaRMSNorm":
                norm = nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon)
                norm.weight = child.weight
                setattr(parent, name, norm)
    model.model.rotary_emb = _Rotary(model.model.rotary_emb)
    return model.double()
