"""Forward and backward passes: over packs with the trainer's code, and over padded batches with plain transformers.

Both add the gradient of the same loss, `sum(weight * clipped surrogate)`, to the parameters. All that the benchmark
uses of `ajet_server.train` is named here.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from ajet_core.config import TrainerConfig
from ajet_merge import Call, Pack
from ajet_server.train.attention import ATTENTION, Backend, choose_backend
from ajet_server.train.forward import PackTensors, occurrence_logprobs
from ajet_server.train.losses.surrogate import clipped_loss

__all__ = ["ATTENTION", "PACK_TOKENS", "run_calls", "run_packs"]

PACK_TOKENS = TrainerConfig().pack_tokens
"""Most tokens in a pack, for all that pack."""
_CHUNK = TrainerConfig().logprob_chunk
_CLIP = 0.2


def run_packs(model: PreTrainedModel, packs: Sequence[Pack], backend: Backend | None = None) -> float:
    """Runs packs through a model with `ATTENTION`, by the device's default backend; returns the loss."""
    chosen = backend or choose_backend(model.device)
    return sum(_run_pack(model, pack, chosen) for pack in packs)


def _run_pack(model: PreTrainedModel, pack: Pack, backend: Backend) -> float:
    """The loss is one of tokens, so which call an occurrence is of does not matter."""
    temperature_M = np.ones(pack.occ_index.size, np.float32)
    call_M = np.zeros(pack.occ_index.size, np.int32)  # the clipped ratio is one of tokens, whoever's they are
    tensors = PackTensors.of(pack, temperature_M, call_M, backend, _CHUNK, model.device)
    logprobs_M, _ = occurrence_logprobs(model, tensors)
    return _backward(logprobs_M, tensors.rollout_M, tensors.advantage_M, tensors.weight_M)


def run_calls(model: PreTrainedModel, calls: Sequence[Call], rows: int) -> float:
    """Runs calls, each a row, in padded batches through plain transformers; returns the loss.

    Logits exist only for trained tokens. Batches are filled in the order given.

    Args:
        model: with transformers' own attention.
        calls: fully trained, with prompts.
        rows: most calls in a batch; with 1 nothing is padded.
    """
    return sum(_run_batch(model, calls[first : first + rows]) for first in range(0, len(calls), rows))


def _run_batch(model: PreTrainedModel, calls: Sequence[Call]) -> float:
    longest = max(map(len, calls))
    ids_BT, mask_BT = torch.zeros(len(calls), longest, dtype=torch.long), torch.zeros(len(calls), longest)
    for row, call in enumerate(calls):
        ids_BT[row, : len(call)] = torch.from_numpy(np.concatenate([call.prompt_ids, call.completion_ids]))
        mask_BT[row, : len(call)] = 1
    padded = None if bool(mask_BT.all()) else mask_BT.long()
    hidden_BTD = model.base_model(input_ids=ids_BT, attention_mask=padded, use_cache=False).last_hidden_state
    row_M = np.repeat(np.arange(len(calls)), [call.completion_ids.size for call in calls])
    at_M = np.concatenate([np.arange(call.prompt_ids.size, len(call)) for call in calls])
    head: Any = model.get_output_embeddings()
    logits_MV: torch.Tensor = head(hidden_BTD[row_M, at_M - 1])
    logprobs_M = logits_MV.log_softmax(-1).gather(1, ids_BT[row_M, at_M][:, None])[:, 0]
    old_M, advantage_M, weight_M = (_joined(calls, name) for name in ("logprobs", "advantage", "weight"))
    return _backward(logprobs_M, old_M, advantage_M, weight_M)


def _joined(calls: Sequence[Call], name: str) -> torch.Tensor:
    arrays: list[NDArray[np.float32]] = [getattr(call, name) for call in calls]
    return torch.from_numpy(np.concatenate(arrays))


def _backward(
    logprobs_M: torch.Tensor, old_M: torch.Tensor, advantage_M: torch.Tensor, weight_M: torch.Tensor
) -> float:
    loss_M, _, _ = clipped_loss(logprobs_M - old_M, advantage_M, _CLIP, _CLIP)
    loss = (weight_M * loss_M).sum()
    loss.backward()
    return loss.item()
