"""Proves, by running it, that a model is trained exactly over packs. What its configuration tells is checked before."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ajet_core.errors import ConfigError
from ajet_merge import Call, merge
from ajet_server.train.attention import Backend
from ajet_server.train.forward import PackTensors, occurrence_logprobs

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PROBE_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}
"""Nats by which the load-time probe may differ; 1.0 in bfloat16, where rounding alone makes 0.2."""


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
