"""What models say that are not trained: the reference, and the model and its critic as they were before the update."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from peft import PeftModel

from ajet_core.config_algorithm import KlConfig
from ajet_core.errors import RequestError
from ajet_server.samples.merge import Batch
from ajet_server.train.forward import PackTensors, hidden_logprobs, hidden_states, occurrence_logprobs
from ajet_server.train.losses.kl import kl_estimate
from ajet_server.train.value import ValueHead

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def with_old(
    plain: "PreTrainedModel",
    packs: Sequence[PackTensors],
    autocast: torch.dtype | None = None,
    head: ValueHead | None = None,
    logprobs: bool = True,
) -> list[PackTensors]:
    """The packs with what the model says now, before it is updated; one pass for all of it.

    Args:
        plain: the plain causal language model.
        packs: the batch.
        autocast: number format of the matrix products when it is not that of the weights.
        head: the critic's; with one the packs get `old_value_M`.
        logprobs: whether they get `old_M`.
    """
    found: list[PackTensors] = []
    for pack in packs:
        hidden_TD = hidden_states(plain, pack, autocast)
        old_M = hidden_logprobs(plain, hidden_TD, pack, autocast)[0] if logprobs else None
        found.append(replace(pack, old_M=old_M, old_value_M=None if head is None else head(hidden_TD, pack.head)))
    return found


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


def token_kl(batch: Batch, packs: Sequence[PackTensors], config: KlConfig) -> npt.NDArray[np.float64]:
    """The estimated KL to the reference at every token of the batch, f64[S], nats; 0 at those that are not trained.

    Estimated at the engine's own log-probabilities; a call in another context than the engine's costs nothing.

    Args:
        batch: its S sampled tokens are the completions of its calls, laid end to end.
        packs: all of its occurrences, with `reference_M`.
        config: which estimate.

    Raises:
        RequestError: an estimate is not finite; names the call.
    """
    kls: list[torch.Tensor] = []
    for pack in packs:
        if pack.reference_M is None:
            raise ValueError("a pack has no reference_M: it did not come from `with_reference`")
        kl_M = kl_estimate(pack.rollout_M, pack.reference_M, config.estimator)
        kls.append(torch.where(pack.exact_M, kl_M, 0))
    kl_S = by_token(batch, packs, kls)
    _refuse_infinite(batch, kl_S, config)
    return kl_S


def _refuse_infinite(batch: Batch, kl_S: npt.NDArray[np.float64], config: KlConfig) -> None:
    broken = np.flatnonzero(~np.isfinite(kl_S))
    if broken.size:
        index = int(batch.token_calls[broken[0]])
        call, token = batch.calls[index], int(broken[0] - batch.token_starts[index])
        raise RequestError(
            f"episode {call.episode_id!r}, call {call.call_id!r}: algorithm.kl.estimator {config.estimator!r} is "
            f"{kl_S[broken[0]]} at completion token {token}, whose recorded log-probability is {call.logprobs[token]}; "
            "no reward can pay that. Either the reference model is broken (not a number), or the two are too far apart "
            "for 32 bits, where 'k1' fits",
            field="algorithm.kl",
        )


def by_token(batch: Batch, packs: Sequence[PackTensors], numbers: Sequence[torch.Tensor]) -> npt.NDArray[np.float64]:
    """One number of each occurrence of each pack, laid on the batch's S sampled tokens: f64[S], 0 elsewhere."""
    found_S = np.zeros(batch.token_calls.size)
    for pack, numbers_M in zip(packs, numbers, strict=True):
        found_S[pack.tokens_in_batch.cpu().numpy()] = numbers_M.double().cpu().numpy()
    return found_S


def with_advantages(batch: Batch, packs: Sequence[PackTensors]) -> list[PackTensors]:
    """The packs with the batch's advantages."""
    if not batch.calls:
        return list(packs)
    advantage_S = torch.from_numpy(np.concatenate([call.advantage for call in batch.calls]))
    return [replace(pack, advantage_M=at_tokens(advantage_S, pack)) for pack in packs]


def at_tokens(numbers_S: torch.Tensor, pack: PackTensors) -> torch.Tensor:
    """[M], on the pack's device: the numbers of its occurrences' tokens."""
    return numbers_S.to(pack.tokens_in_batch.device)[pack.tokens_in_batch]
