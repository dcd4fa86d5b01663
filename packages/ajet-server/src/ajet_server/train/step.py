"""One optimizer step over all packs of a mini-batch."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from ajet_core.config import AlgorithmConfig, OptimizerConfig
from ajet_core.config_algorithm import ValueConfig
from ajet_server.train.forward import PackTensors, hidden_logprobs, hidden_states
from ajet_server.train.losses.policy import LossInputs, policy_loss
from ajet_server.train.losses.stats import LossStats, no_stats
from ajet_server.train.losses.value import value_loss
from ajet_server.train.value import ValueHead

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Progress = Callable[[str, int, int], None]
"""Told (stage, done, total) as a sign of life."""


@dataclass(frozen=True, slots=True)
class StepFigures:
    """What the optimizer steps of one batch did. Where one was skipped, `loss` and `grad_norm` may not be finite.

    Attributes:
        loss: over the global batch, the mean of the steps.
        policy_loss: its part without the KL penalty, the entropy bonus and the value loss.
        grad_norm: before clipping; the largest of the steps.
        clip_fraction: share of occurrences that were clipped.
        clip_fraction_low: those from below.
        clip_fraction_high: those from above.
        approx_kl: mean k3 over the occurrences, engine against trainer.
        reference_kl: mean estimate of KL(model || reference), nats; 0 without a reference.
        ratio_min: smallest ratio.
        ratio_max: largest ratio.
        ratio_mean: mean ratio.
        ratio_q01: the ratio that 1% are at most.
        ratio_q10: so for 10%.
        ratio_q50: so for 50%.
        ratio_q90: so for 90%.
        ratio_q99: so for 99%.
        importance_mean: mean importance weight before its bounds; 1 without `off_policy`.
        importance_max: the largest.
        importance_cut: share of occurrences whose weight was bounded.
        value_loss: of the critic, before its coefficient, the mean of the steps; 0 without a critic.
        value_clip_fraction: share of occurrences whose value had moved as far as it may.
        entropy: mean over the occurrences, nats.
        optimizer_steps: steps that were taken.
        skipped: True when a loss or a gradient was not finite; that step changed nothing.
    """

    loss: float
    policy_loss: float
    grad_norm: float
    clip_fraction: float
    clip_fraction_low: float
    clip_fraction_high: float
    approx_kl: float
    reference_kl: float
    ratio_min: float
    ratio_max: float
    ratio_mean: float
    ratio_q01: float
    ratio_q10: float
    ratio_q50: float
    ratio_q90: float
    ratio_q99: float
    importance_mean: float
    importance_max: float
    importance_cut: float
    value_loss: float
    value_clip_fraction: float
    entropy: float
    optimizer_steps: int
    skipped: bool


def make_optimizer(
    parameters: Iterable[torch.nn.Parameter],
    config: OptimizerConfig,
    learning_rate: float,
    head: ValueHead | None = None,
    head_rate: float = 0.0,
) -> torch.optim.AdamW:
    """Returns AdamW (Loshchilov and Hutter 2017, arXiv 1711.05101), all parameters in one fused pass.

    Args:
        parameters: of the model.
        config: betas, eps and weight decay.
        learning_rate: of the model, at its highest. Each group keeps its own as `peak`, which `set_rate` reads.
        head: the critic's, in a group of its own. Nothing decays it: the mean of the returns is no complexity.
        head_rate: its learning rate, at its highest.
    """
    groups: list[dict[str, object]] = [{"params": list(parameters), "lr": learning_rate, "peak": learning_rate}]
    if head is not None:
        groups.append({"params": list(head.parameters()), "lr": head_rate, "peak": head_rate, "weight_decay": 0.0})
    return torch.optim.AdamW(
        groups,
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
    head: ValueHead | None = None,
) -> LossStats:
    """Adds the gradient of the whole mini-batch to the parameters' `.grad`, pack by pack.

    Loss weights were fixed over the mini-batch, so the sum over packs is the loss and nothing is divided here.

    Args:
        model: the plain causal language model, with adapters in its layers or without.
        packs: the mini-batch.
        algorithm: which loss.
        progress: told as packs are done.
        autocast: number format of the matrix products when it is not that of the weights.
        head: the critic's; with baseline `value`.
    """
    device = next(model.parameters()).device
    stats = no_stats(device)
    progress("update", 0, len(packs))
    for done, pack in enumerate(packs, start=1):
        stats = stats + _one_pack(model, pack, algorithm, autocast, head)
        progress("update", done, len(packs))
    return stats


def _one_pack(
    model: "PreTrainedModel",
    pack: PackTensors,
    algorithm: AlgorithmConfig,
    autocast: torch.dtype | None,
    head: ValueHead | None,
) -> LossStats:
    hidden_TD = hidden_states(model, pack, autocast)
    logprobs_M, entropy_M = hidden_logprobs(model, hidden_TD, pack, autocast, algorithm.entropy_coef > 0)
    inputs = LossInputs(
        logprobs_M=logprobs_M,
        rollout_M=pack.rollout_M,
        advantage_M=pack.advantage_M,
        weight_M=pack.weight_M,
        unit_M=pack.call_M,
        exact_M=pack.exact_M,
        entropy_M=entropy_M,
        old_M=pack.old_M,
        reference_M=pack.reference_M,
    )
    loss, stats = policy_loss(inputs, algorithm)
    if head is not None and algorithm.value is not None:
        value, clipped_M = _value_loss(head, hidden_TD, pack, algorithm.value)
        loss = loss + algorithm.value.coef * value
        stats = replace(stats, loss=loss.detach(), value_loss=value.detach(), value_clipped=clipped_M.sum())
    loss.backward()
    return stats


def _value_loss(
    head: ValueHead, hidden_TD: torch.Tensor, pack: PackTensors, config: ValueConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    if pack.old_value_M is None or pack.return_M is None:
        raise ValueError("a pack has no old_value_M or return_M: it did not come from `scoring.scored`")
    values_M = head(hidden_TD.detach() if config.trunk == "frozen" else hidden_TD, pack.head)
    return value_loss(values_M, pack.old_value_M, pack.return_M, pack.weight_M, config.clip)


def apply_step(optimizer: torch.optim.Optimizer, stats: LossStats, max_grad_norm: float) -> tuple[float, bool]:
    """Clips the accumulated gradient to `max_grad_norm`, steps, and clears it.

    A loss or a gradient that is not finite changes neither the parameters nor the optimizer's state.

    Returns:
        (norm before clipping, whether the step was skipped).
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    skipped = not bool(torch.isfinite(norm) & torch.isfinite(stats.loss))
    if not skipped:
        torch.nn.utils.clip_grads_with_norm_(parameters, max_grad_norm, norm)
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(norm), skipped


def figures(stats: LossStats, norms: list[float], skipped: int) -> StepFigures:
    """What `len(norms)` optimizer steps did together.

    Args:
        stats: of all of them.
        norms: of the gradient of each.
        skipped: how many were skipped.
    """
    count, exact = max(int(stats.count), 1), max(int(stats.exact), 1)
    ratio, steps = stats.ratio, max(len(norms), 1)
    return StepFigures(
        loss=float(stats.loss) / steps,
        policy_loss=float(stats.policy_loss) / steps,
        grad_norm=max(norms, default=0.0),
        clip_fraction=float(stats.clipped_low + stats.clipped_high) / count,
        clip_fraction_low=float(stats.clipped_low) / count,
        clip_fraction_high=float(stats.clipped_high) / count,
        approx_kl=float(stats.k3) / exact,
        reference_kl=float(stats.kl) / count,
        ratio_min=float(ratio.lowest) if stats.count else 1.0,
        ratio_max=float(ratio.highest) if stats.count else 1.0,
        ratio_mean=ratio.mean(),
        ratio_q01=ratio.quantile(0.01),
        ratio_q10=ratio.quantile(0.1),
        ratio_q50=ratio.quantile(0.5),
        ratio_q90=ratio.quantile(0.9),
        ratio_q99=ratio.quantile(0.99),
        importance_mean=stats.importance.mean(),
        importance_max=float(stats.importance.highest) if bool(stats.importance.histogram_B.any()) else 1.0,
        importance_cut=float(stats.cut) / count,
        value_loss=float(stats.value_loss) / steps,
        value_clip_fraction=float(stats.value_clipped) / count,
        entropy=float(stats.entropy) / count,
        optimizer_steps=len(norms) - skipped,
        skipped=skipped > 0,
    )
