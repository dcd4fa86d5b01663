"""The loss: pure functions of log-probabilities."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class LossStats:
    """Sums and extremes over occurrences, as scalars on the device. Add those of all packs with `+`.

    Attributes:
        count: occurrences.
        loss: sum of weight * loss.
        clipped: occurrences in which the clipped term is the smaller one, so that no gradient flows.
        k3: sum of Schulman's k3.
        entropy: sum, nats.
        ratio_min: smallest ratio; +inf without occurrences.
        ratio_max: largest ratio; -inf without occurrences.
    """

    count: int
    loss: torch.Tensor
    clipped: torch.Tensor
    k3: torch.Tensor
    entropy: torch.Tensor
    ratio_min: torch.Tensor
    ratio_max: torch.Tensor

    def __add__(self, other: "LossStats") -> "LossStats":
        return LossStats(
            self.count + other.count,
            self.loss + other.loss,
            self.clipped + other.clipped,
            self.k3 + other.k3,
            self.entropy + other.entropy,
            torch.minimum(self.ratio_min, other.ratio_min),
            torch.maximum(self.ratio_max, other.ratio_max),
        )


def no_stats(device: torch.device) -> LossStats:
    """Returns the statistics of no occurrence."""
    zero, inf = torch.zeros((), device=device), torch.full((), torch.inf, device=device)
    return LossStats(0, zero, zero, zero, zero, inf, -inf)


def clipped_surrogate(
    logprobs_M: torch.Tensor,
    old_logprobs_M: torch.Tensor,
    advantage_M: torch.Tensor,
    weight_M: torch.Tensor,
    clip_low: float,
    clip_high: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """PPO's clipped surrogate: `sum(weight * -min(r A, clip(r, 1 - low, 1 + high) A))` with `r = exp(new - old)`.

    Schulman et al. 2017 (arXiv 1707.06347, eq. 7); with group-relative advantages this is GRPO (arXiv 2402.03300,
    eq. 3) without its KL term. Two bounds as in DAPO (arXiv 2503.14476, eq. 8).

    Args:
        logprobs_M: of the model that is trained, at the temperature each token was sampled with.
        old_logprobs_M: of the model that sampled, as recorded.
        advantage_M: advantages.
        weight_M: loss weights over the global batch.
        clip_low: the ratio is clipped from below at 1 - clip_low.
        clip_high: the ratio is clipped from above at 1 + clip_high.

    Returns:
        The loss, a scalar; and bool[M], where the clipped term is strictly the smaller one.
    """
    ratio_M = (logprobs_M - old_logprobs_M).exp()
    plain_M = ratio_M * advantage_M
    clipped_M = ratio_M.clamp(1 - clip_low, 1 + clip_high) * advantage_M
    loss = -(weight_M * torch.minimum(plain_M, clipped_M)).sum()
    return loss, (clipped_M < plain_M).detach()


def k3_kl(logprobs_M: torch.Tensor, old_logprobs_M: torch.Tensor) -> torch.Tensor:
    """Schulman's k3 estimate of KL(old || new) at samples of old: `r - 1 - log r`, r = new / old. Never negative.

    J. Schulman 2020, "Approximating KL divergence", http://joschu.net/blog/kl-approx.html.

    Returns:
        [M], one estimate per occurrence.
    """
    log_ratio_M = logprobs_M - old_logprobs_M
    return torch.expm1(log_ratio_M) - log_ratio_M
