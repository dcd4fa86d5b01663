"""Loads a model folder as a transformers model, in the number format that suits the device."""

from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM

from ajet_core.config import ModelConfig
from ajet_core.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def resolve_device(config: ModelConfig) -> torch.device:
    """Returns the device that `config.device` means here. Raises `ConfigError` for a GPU that is not there."""
    has_gpu = torch.cuda.is_available()
    if config.device == "cuda" and not has_gpu:
        raise ConfigError("model.device: 'cuda', but torch sees no GPU here; use 'auto' or 'cpu'", field="model.device")
    return torch.device("cuda" if has_gpu and config.device != "cpu" else "cpu")


def resolve_dtype(config: ModelConfig, device: torch.device) -> torch.dtype:
    """Returns float32 on a CPU unless told otherwise: bfloat16 has no fast path on most of them."""
    if config.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return getattr(torch, config.dtype)


def load_causal_lm(config: ModelConfig, attention: str) -> "PreTrainedModel":
    """Loads the model with the registered attention function `attention`, in eval mode, on its device.

    From safetensors only: other weight files are pickles, and to unpickle a file is to run what is in it.
    """
    device = resolve_device(config)
    model: Any = AutoModelForCausalLM.from_pretrained(
        config.path,
        dtype=resolve_dtype(config, device),
        attn_implementation=attention,
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=False,
    )
    return model.to(device).eval()
