"""The loss of a pack: the parts that the job's `algorithm` names, put together."""

from dataclasses import dataclass

import torch

from ajet_core.config import AlgorithmConfig
from ajet_core.errors import ConfigError
from ajet_server.train.losses.kl import kl_estimate
from ajet_server.train.losses.off_policy import importance_weights
from ajet_server.train.losses.ratio import sequence_ratio
from ajet_server.train.losses.stats import LossStats, RatioStats
from ajet_server.train.losses.surrogate import clipped_loss, weighted_loss


@dataclass(frozen=True)
class LossInputs:
    """M occurrences: all of the calls that are here, in any order.

    Attributes:
        logprobs_M: of the model that is trained, at the temperature each token was sampled with.
        rollout_M: of the engine, as recorded.
        advantage_M: advantages.
        weight_M: loss weights over the global batch.
        unit_M: i64[M], the call of each occurrence: any number, equal within a call and only there.
        exact_M: bool[M]; where False `rollout_M` is of another context and is never used (see `Call.context_exact`).
        entropy_M: nats; with a gradient if the algorithm has an `entropy_coef`.
        old_M: of the model before the update; None when nothing was updated since, so that `logprobs_M` are that.
        reference_M: of the reference model; needed with `kl` in the loss.
    """

    logprobs_M: torch.Tensor
    rollout_M: torch.Tensor
    advantage_M: torch.Tensor
    weight_M: torch.Tensor
    unit_M: torch.Tensor
    exact_M: torch.Tensor
    entropy_M: torch.Tensor
    old_M: torch.Tensor | None = None
    reference_M: torch.Tensor | None = None


def policy_loss(inputs: LossInputs, algorithm: AlgorithmConfig) -> tuple[torch.Tensor, LossStats]:
    """`sum(weight * (importance * policy_loss + coef * KL - entropy_coef * entropy))` over the occurrences.

    Weights were fixed over the global batch, so the losses of its packs add up to that of the batch, and so do their
    statistics, however the calls are spread over packs.

    Args:
        inputs: one pack, or any other set of whole calls.
        algorithm: which parts.

    Returns:
        The loss, a scalar with a gradient, and its statistics.

    Raises:
        ConfigError: a reference is asked for but not here, or the other way round.
    """
    before_M = inputs.logprobs_M.detach() if inputs.old_M is None else inputs.old_M
    log_ratio_M = inputs.logprobs_M - _denominator(inputs, before_M, algorithm)
    if algorithm.ratio_level == "sequence":
        log_ratio_M = sequence_ratio(log_ratio_M, inputs.unit_M)
    terms_M, low_M, high_M = _policy_terms(inputs, log_ratio_M, algorithm)
    terms_M, importance, cut = _corrected(terms_M, before_M, inputs, algorithm)
    policy = (inputs.weight_M * terms_M).sum()
    penalty, kl = _kl_penalty(inputs, algorithm)
    bonus = algorithm.entropy_coef * (inputs.weight_M * inputs.entropy_M).sum() if algorithm.entropy_coef else 0.0
    loss = policy + penalty - bonus
    exact_M = inputs.exact_M
    stats = LossStats(
        count=torch.ones_like(inputs.unit_M).sum(),
        exact=exact_M.sum(),
        loss=loss.detach(),
        policy_loss=policy.detach(),
        kl=kl,
        entropy=inputs.entropy_M.detach().sum(),
        k3=torch.where(exact_M, kl_estimate(inputs.rollout_M, inputs.logprobs_M.detach(), "k3"), 0).sum(),
        clipped_low=low_M.sum(),
        clipped_high=high_M.sum(),
        cut=cut,
        value_loss=torch.zeros_like(policy).detach(),
        value_clipped=torch.zeros_like(cut),
        ratio=RatioStats.of(log_ratio_M),
        importance=importance,
    )
    return loss, stats


def _denominator(inputs: LossInputs, before_M: torch.Tensor, algorithm: AlgorithmConfig) -> torch.Tensor:
    """Log-probabilities that the ratio compares with. Those of another context are replaced by the model's own."""
    if algorithm.old_logprobs == "recomputed":
        return before_M
    return torch.where(inputs.exact_M, inputs.rollout_M, before_M)


def _policy_terms(
    inputs: LossInputs, log_ratio_M: torch.Tensor, algorithm: AlgorithmConfig
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    low, high = algorithm.clip_low, algorithm.clip_high
    if algorithm.clipping == "weight":
        return weighted_loss(inputs.logprobs_M, log_ratio_M, inputs.advantage_M, low, high)
    return clipped_loss(log_ratio_M, inputs.advantage_M, low, high)


def _corrected(
    terms_M: torch.Tensor, before_M: torch.Tensor, inputs: LossInputs, algorithm: AlgorithmConfig
) -> tuple[torch.Tensor, RatioStats, torch.Tensor]:
    """The terms times their importance weights, the statistics of these, and how many a bound changed."""
    if algorithm.off_policy is None:
        return terms_M, RatioStats.none(terms_M.device), inputs.unit_M.new_zeros(())
    log_weight_M = torch.where(inputs.exact_M, before_M - inputs.rollout_M, 0.0)
    weight_M, log_weight_M, cut_M = importance_weights(log_weight_M, inputs.unit_M, algorithm.off_policy)
    return weight_M * terms_M, RatioStats.of(log_weight_M), cut_M.sum()


def _kl_penalty(inputs: LossInputs, algorithm: AlgorithmConfig) -> tuple[torch.Tensor | float, torch.Tensor]:
    """What the penalty adds to the loss, and the sum of the estimates."""
    if inputs.reference_M is None:
        if algorithm.kl is not None and algorithm.kl.place == "loss":
            raise ConfigError("algorithm.kl: needs log-probabilities of the reference model", field="algorithm.kl")
        return 0.0, inputs.weight_M.new_zeros(())
    if algorithm.kl is None:
        raise ConfigError("algorithm.kl: is not set, but a reference model was computed", field="algorithm.kl")
    kl_M = kl_estimate(inputs.logprobs_M, inputs.reference_M, algorithm.kl.estimator)
    total = kl_M.detach().sum()
    if algorithm.kl.place == "reward":
        return 0.0, total
    return algorithm.kl.coef * (inputs.weight_M * kl_M).sum(), total
