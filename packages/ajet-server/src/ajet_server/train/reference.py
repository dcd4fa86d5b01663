"""Log-probabilities of models that are not trained: the reference, and the model as it was before the update."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from peft import PeftModel

from ajet_core.config import AlgorithmConfig
from ajet_server.samples.merge import Batch, advantages_with_kl
from ajet_server.train.forward import PackTensors, occurrence_logprobs
from ajet_server.train.losses.kl import kl_estimate

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def with_old(
    plain: "PreTrainedModel", packs: Sequence[PackTensors], autocast: torch.dtype | None = None
) -> list[PackTensors]:
    """The packs with `old_M`: what the model says now, before it is updated."""
    return [replace(pack, old_M=occurrence_logprobs(plain, pack, autocast)[0]) for pack in packs]


@torch.no_grad()
def with_reference(
    model: "PeftModel | PreTrainedModel", packs: Sequence[PackTensors], autocast: torch.dtype | None = None
) -> list[PackTensors]:
    """The packs with `reference_M`.

    Args:
        model: the model with its adapter, which is switched off meanwhile; or, without one, a frozen copy of the model.
        packs: the batch.
        autocast: number format of the matrix products when it is not that of the weights.
    """
    with model.disable_adapter() if isinstance(model, PeftModel) else nullcontext():
        plain: PreTrainedModel = model.get_base_model() if isinstance(model, PeftModel) else model  # pyright: ignore[reportAssignmentType]
        return [replace(pack, reference_M=occurrence_logprobs(plain, pack, autocast)[0]) for pack in packs]


def kl_of_calls(batch: Batch, packs: Sequence[PackTensors], algorithm: AlgorithmConfig) -> Batch:
    """The batch with the advantages of rewards that the KL to the reference was taken off.

    Estimated at the engine's own log-probabilities; a call in another context than the engine's costs nothing.

    Args:
        batch: of N calls.
        packs: all of its occurrences, with `reference_M`, and `call_M` counting the batch's calls.
        algorithm: with `kl` in place `reward`; nothing changes otherwise.
    """
    if algorithm.kl is None or algorithm.kl.place != "reward":
        return batch
    kl_N = torch.zeros(len(batch.calls), dtype=torch.float64)
    for pack in packs:
        if pack.reference_M is None:
            raise ValueError("a pack has no reference_M: it did not come from `with_reference`")
        kl_M = kl_estimate(pack.rollout_M, pack.reference_M, algorithm.kl.estimator)
        kl_N.index_add_(0, pack.call_M.cpu(), torch.where(pack.exact_M, kl_M, 0).double().cpu())
    return advantages_with_kl(batch, kl_N.numpy(), algorithm)


def with_advantages(batch: Batch, packs: Sequence[PackTensors]) -> list[PackTensors]:
    """The packs with the batch's advantages, which are one number for each call."""
    advantage_N = torch.tensor([float(call.advantage[:1].sum()) for call in batch.calls])
    return [replace(pack, advantage_M=advantage_N.to(pack.call_M.device)[pack.call_M]) for pack in packs]
