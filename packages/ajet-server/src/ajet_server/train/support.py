"""Which models can be trained over packs exactly; all others are refused at load, with the reason.

Sharing a prefix is exact when attention is causal and full, positions come from `position_ids` alone, nothing is random
and no token's result depends on which other tokens are in the pass.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ajet_core.errors import ConfigError
from ajet_merge import Call, merge
from ajet_server.train.attention import Backend
from ajet_server.train.forward import PackTensors, occurrence_logprobs

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_DROPOUTS = (
    "attention_dropout",
    "attention_probs_dropout_prob",
    "attn_pdrop",
    "embd_pdrop",
    "hidden_dropout",
    "hidden_dropout_prob",
    "resid_pdrop",
    "dropout",
)
_SOFTCAPS = ("attn_logit_softcapping", "final_logit_softcapping")
_CAPACITIES = ("expert_capacity", "capacity_factor", "moe_capacity_factor", "moe_expert_capacity_factor")
_LENGTH_DEPENDENT_ROPES = ("dynamic", "longrope")
_STATEFUL = ("mamba", "ssm", "rwkv", "linear_attn", "recurrent")

PROBE_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}
"""Nats by which the load-time probe may differ; 1.0 in bfloat16, where rounding alone makes 0.2."""


def refuse_unsupported(config: Any) -> None:
    """Raises `ConfigError` for a configuration that packs cannot do exactly."""
    reason = next(_reasons(config), None)
    if reason is not None:
        kind = getattr(config, "model_type", "this model")
        raise ConfigError(f"model.path: {kind} cannot be trained over merged packs: {reason}", field="model.path")


def _reasons(config: Any) -> Iterator[str]:
    layers = sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention"})
    if layers:
        yield f"layers of type {', '.join(layers)}; only full attention shares prefixes exactly"
    window = getattr(config, "sliding_window", None)
    if window is not None and not layers and getattr(config, "use_sliding_window", True) and not _all_full(config):
        yield f"sliding_window={window}"
    yield from (f"{name}={_value(config, name)} (softcapping)" for name in _SOFTCAPS if _value(config, name))
    yield from (f"{name}={_value(config, name)} drops tokens by batch" for name in _CAPACITIES if _value(config, name))
    yield from (f"{name}={_value(config, name)}; set it to 0" for name in _DROPOUTS if _value(config, name) > 0)
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if rope in _LENGTH_DEPENDENT_ROPES:
        yield f"rope type {rope!r} makes positions depend on the length of the pack"
    stateful = [name for name in vars(config) if any(word in name for word in _STATEFUL) and vars(config)[name]]
    if stateful:
        yield f"recurrent state ({stateful[0]})"


def _all_full(config: Any) -> bool:
    return bool(getattr(config, "layer_types", None))


def _value(config: Any, name: str) -> float:
    value = getattr(config, name, None)
    return float(value) if isinstance(value, int | float) else 0.0


def vocab_size(model: "PreTrainedModel") -> int:
    """Returns the number of rows of the model's embedding: token ids are below it."""
    embeddings: Any = model.get_input_embeddings()
    return int(embeddings.weight.shape[0])


@torch.no_grad()
def verify_exact(model: "PreTrainedModel", backend: Backend) -> None:
    """Compares a small forked pack with each of its calls alone, through the model's own output layer.

    Catches what no configuration key tells: state that leaks over a fork, or logits scaled after the output layer.

    Raises:
        ConfigError: they differ.
    """
    device, vocab = next(model.parameters()).device, vocab_size(model)
    ids = np.random.default_rng(0).integers(0, vocab, 40).astype(np.int32)
    prompt, tails = ids[:12], (ids[12:24], ids[24:32], ids[32:40])
    calls = [Call(prompt, tail, np.zeros(tail.size, np.float32)) for tail in tails]
    (pack,) = merge(calls).packs(budget=64)
    tensors = PackTensors.of(pack, np.ones(pack.occ_index.size, np.float32), backend, 64, device)
    merged_M = occurrence_logprobs(model, tensors)[0][torch.from_numpy(np.argsort(pack.occ_index)).to(device)]
    alone_M = torch.cat([_alone(model, np.concatenate([prompt, tail]), prompt.size, backend) for tail in tails])
    error = float((merged_M - alone_M).abs().max())
    tolerance = PROBE_TOLERANCE.get(model.dtype, 1.0)
    if not error <= tolerance:
        raise ConfigError(
            f"model.path: {type(model).__name__} cannot be trained over merged packs: sharing a prefix changes "
            f"log-probabilities by {error:.3g} nats (at most {tolerance:g} is rounding)",
            field="model.path",
        )


def _alone(
    model: "PreTrainedModel", ids: "np.ndarray[Any, np.dtype[np.int32]]", prompt: int, backend: Backend
) -> torch.Tensor:
    """Log-probabilities of ids[prompt:] by the whole model's own forward pass over one sequence."""
    device = next(model.parameters()).device
    (pack,) = merge([Call(ids[:1], ids[1:], np.zeros(ids.size - 1, np.float32))]).packs(budget=ids.size)
    layout = PackTensors.of(pack, np.ones(ids.size - 1, np.float32), backend, 64, device).layout
    tokens_T = torch.from_numpy(ids).long().to(device)
    logits_TV = model(input_ids=tokens_T[None], use_cache=False, pack_layout=layout).logits[0]
    logprobs_TV = logits_TV.to(torch.promote_types(logits_TV.dtype, torch.float32)).log_softmax(-1)
    return logprobs_TV[torch.arange(prompt - 1, len(ids) - 1), tokens_T[prompt:]]
