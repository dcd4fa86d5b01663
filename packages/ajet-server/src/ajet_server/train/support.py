"""Proves, by running it, that a model is trained exactly over packs. What its configuration tells is checked before."""

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ajet_core.errors import ConfigError
from ajet_merge import Call, Forest, Pack, merge
from ajet_server.models.supported import Level, windowed_layers
from ajet_server.train.attention import Backend, PackLayout
from ajet_server.train.forward import PackTensors, occurrence_logprobs
from ajet_server.train.linear import linear_packs

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_log = logging.getLogger(__name__)

PROBE_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}
"""Nats by which the load-time probe may differ; 1.0 in bfloat16, where rounding alone makes 0.2."""


def vocab_size(model: "PreTrainedModel") -> int:
    """Returns the number of rows of the model's embedding: token ids are below it."""
    embeddings: Any = model.get_input_embeddings()
    return int(embeddings.weight.shape[0])


def hidden_width(model: "PreTrainedModel") -> int:
    """Returns the number of columns of the output layer: as many numbers has a hidden state."""
    head: Any = model.get_output_embeddings()
    return int(head.weight.shape[1])


@torch.no_grad()
def verify_exact(model: "PreTrainedModel", backend: Backend, level: Level = "forest") -> None:
    """Compares small packs, which hold forks and turns, with each of their calls alone, through the whole model.

    Catches what no configuration key tells: state that leaks over a fork, a token that changes what an earlier one
    gives, or logits scaled after the output layer. Says in the log which layers `backend` leaves to another.

    Args:
        model: the model.
        backend: who computes attention.
        level: how much the packs share (`models.supported.sharing_of`).

    Raises:
        ConfigError: they differ.
    """
    _log_exceptions(model, backend)
    calls = _probe(vocab_size(model))
    forest = merge(calls)
    packs = forest.packs(64) if level == "forest" else linear_packs(forest, 64, level)
    merged_M = torch.cat([_logprobs(model, pack, forest, backend) for pack in packs])
    order_M = np.argsort(np.concatenate([pack.occ_index for pack in packs]))
    alone_M = torch.cat([_alone(model, call, backend) for call in calls])
    error = float((merged_M[torch.from_numpy(order_M).to(merged_M.device)] - alone_M).abs().max())
    tolerance = PROBE_TOLERANCE.get(model.dtype, 1.0)
    if not error <= tolerance:
        raise ConfigError(
            f"model.path: {type(model).__name__} cannot be trained over merged packs: sharing a prefix changes "
            f"log-probabilities by {error:.3g} nats (at most {tolerance:g} is rounding)",
            field="model.path",
        )


def _log_exceptions(model: "PreTrainedModel", backend: Backend) -> None:
    config: Any = model.config.get_text_config()
    windowed, softcap = windowed_layers(config), getattr(config, "attn_logit_softcapping", None)
    if backend == "rectangles" and windowed is not None:
        _log.info(
            "pack attention: %d of %d layers see %d tokens; they run on segments in packs with a longer sequence",
            windowed[0],
            config.num_hidden_layers,
            windowed[1],
        )
    if backend == "rectangles" and softcap:
        _log.info("pack attention: scores are capped at %g, so all layers run on segments", softcap)


def _probe(vocab: int) -> list[Call]:
    """Three completions of one prompt, and two more turns of the last."""
    ids = np.random.default_rng(0).integers(0, vocab, 60).astype(np.int32)
    prompt, tails = ids[:12], (ids[12:24], ids[24:32], ids[32:40])
    later = np.concatenate([prompt, tails[2], ids[40:44]])
    last = np.concatenate([later, ids[44:50], ids[50:54]])
    pairs = [*((prompt, tail) for tail in tails), (later, ids[44:50]), (last, ids[54:])]
    return [Call(before, after, np.zeros(after.size, np.float32)) for before, after in pairs]


def _logprobs(model: "PreTrainedModel", pack: Pack, forest: Forest, backend: Backend) -> torch.Tensor:
    call_M = forest.occurrences.call[pack.occ_index]
    device = next(model.parameters()).device
    tensors = PackTensors.of(pack, np.ones(call_M.size, np.float32), call_M, backend, 64, device)
    return occurrence_logprobs(model, tensors)[0]


def _alone(model: "PreTrainedModel", call: Call, backend: Backend) -> torch.Tensor:
    """Log-probabilities of the completion by the whole model's own forward pass over one sequence."""
    device = next(model.parameters()).device
    (pack,) = merge([call]).packs(budget=len(call))
    tokens_T = torch.from_numpy(pack.tokens.copy()).long().to(device)
    layout = PackLayout.of(pack, backend, device)
    logits_TV = model(input_ids=tokens_T[None], use_cache=False, pack_layout=layout).logits[0]
    logprobs_TV = logits_TV.to(torch.promote_types(logits_TV.dtype, torch.float32)).log_softmax(-1)
    start = call.prompt_ids.size
    return logprobs_TV[torch.arange(start - 1, len(call) - 1), tokens_T[start:]]
