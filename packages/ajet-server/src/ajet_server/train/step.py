"""One optimizer step over all packs of a batch."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ajet_core.config import AlgorithmConfig, OptimizerConfig
from ajet_server.train.forward import PackTensors, occurrence_logprobs
from ajet_server.train.losses import LossStats, clipped_surrogate, k3_kl, no_stats

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Progress = Callable[[str, int, int], None]
"""Told (stage, done, total) as a sign of life."""


@dataclass(frozen=True, slots=True)
class StepFigures:
    """What one step did. Where it was skipped, `loss` and `grad_norm` may not be finite.

    Attributes:
        loss: over the global batch.
        grad_norm: before clipping.
        clip_fraction: share of occurrences that were clipped.
        approx_kl: mean k3 over the occurrences.
        ratio_min: smallest ratio.
        ratio_max: largest ratio.
        entropy: mean over the occurrences, nats.
        skipped: True when the loss or the gradient was not finite; nothing was changed then.
    """

    loss: float
    grad_norm: float
    clip_fraction: float
    approx_kl: float
    ratio_min: float
    ratio_max: float
    entropy: float
    skipped: bool


def make_optimizer(
    parameters: Iterable[torch.nn.Parameter], config: OptimizerConfig, learning_rate: float
) -> torch.optim.AdamW:
    """Returns AdamW (Loshchilov and Hutter 2017, arXiv 1711.05101), all parameters in one fused pass."""
    return torch.optim.AdamW(
        parameters,
        lr=learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )


def accumulate(
    model: "PreTrainedModel",
    packs: list[PackTensors],
    algorithm: AlgorithmConfig,
    progress: Progress,
    autocast: torch.dtype | None = None,
) -> LossStats:
    """Adds the gradient of the whole batch to the parameters' `.grad`, pack by pack.

    Loss weights were fixed over the batch, so the sum over packs is the loss and nothing is divided here.
    """
    device = next(model.parameters()).device
    stats = no_stats(device)
    progress("update", 0, len(packs))
    for done, pack in enumerate(packs, start=1):
        stats = stats + _one_pack(model, pack, algorithm, autocast)
        progress("update", done, len(packs))
    return stats


def _one_pack(
    model: "PreTrainedModel", pack: PackTensors, algorithm: AlgorithmConfig, autocast: torch.dtype | None
) -> LossStats:
    logprobs_M, entropy_M = occurrence_logprobs(model, pack, autocast)
    old_M = pack.old_logprobs_M
    low, high = algorithm.clip_low, algorithm.clip_high
    loss, clipped_M = clipped_surrogate(logprobs_M, old_M, pack.advantage_M, pack.weight_M, low, high)
    loss.backward()
    with torch.no_grad():
        ratio_M = (logprobs_M - old_M).exp()
        return LossStats(
            count=ratio_M.numel(),
            loss=loss.detach(),
            clipped=clipped_M.sum(),
            k3=k3_kl(logprobs_M, old_M).sum(),
            entropy=entropy_M.sum(),
            ratio_min=ratio_M.min(),
            ratio_max=ratio_M.max(),
        )


def apply_step(optimizer: torch.optim.Optimizer, stats: LossStats, max_grad_norm: float) -> StepFigures:
    """Clips the accumulated gradient to `max_grad_norm`, steps, and clears it.

    A loss or a gradient that is not finite changes neither the parameters nor the optimizer's state.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    skipped = not bool(torch.isfinite(norm) & torch.isfinite(stats.loss))
    if not skipped:
        torch.nn.utils.clip_grads_with_norm_(parameters, max_grad_norm, norm)
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return _figures(stats, float(norm), skipped)


def _figures(stats: LossStats, norm: float, skipped: bool) -> StepFigures:
    count = max(stats.count, 1)
    return StepFigures(
        loss=float(stats.loss),
        grad_norm=norm,
        clip_fraction=float(stats.clipped) / count,
        approx_kl=float(stats.k3) / count,
        ratio_min=float(stats.ratio_min) if stats.count else 1.0,
        ratio_max=float(stats.ratio_max) if stats.count else 1.0,
        entropy=float(stats.entropy) / count,
        skipped=skipped,
    )
