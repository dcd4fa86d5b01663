"""What a loss reports: sums, extremes and histograms that add over packs and ranks."""

from dataclasses import dataclass, fields

import torch

BINS = 1025
"""Bins of a histogram. Odd, so that ratio 1 is the middle of one."""
_FINEST = 1e-4
"""Nats. Bins are as wide as their log-ratio is large, and below this equally wide."""
_RANGE = 20.0
"""Nats. What is farther from 0 counts as this far, in the sum and the extremes too: the product of the ratios of a long
call may overflow, and its bounded weight is finite all the same."""


@dataclass(frozen=True)
class RatioStats:
    """Distribution of ratios, as sums that add with `+`.

    The histogram has fixed bins, even in `asinh(log r / 1e-4)`: about 2.5% of a log-ratio wide, and never finer than
    2.5e-6 nats. So quantiles of GSPO's ratios, 1e-4 from 1, are as exact as those of tokens far off.

    Attributes:
        total: sum of ratios.
        lowest: smallest; +inf without any.
        highest: largest; -inf without any.
        histogram_B: i64[BINS].
    """

    total: torch.Tensor
    lowest: torch.Tensor
    highest: torch.Tensor
    histogram_B: torch.Tensor

    @classmethod
    def of(cls, log_ratio_M: torch.Tensor) -> "RatioStats":
        """Counts the ratios whose logarithms are given. One that is not a number is counted as 1."""
        if not log_ratio_M.numel():
            return cls.none(log_ratio_M.device)
        ratio_M = log_ratio_M.detach().clamp(-_RANGE, _RANGE).exp()
        return cls(ratio_M.sum(), ratio_M.min(), ratio_M.max(), _histogram(log_ratio_M.detach()))

    @classmethod
    def none(cls, device: torch.device) -> "RatioStats":
        """Those of no ratio."""
        zero, inf = torch.zeros((), device=device), torch.full((), torch.inf, device=device)
        return cls(zero, inf, -inf, torch.zeros(BINS, dtype=torch.int64, device=device))

    def __add__(self, other: "RatioStats") -> "RatioStats":
        return RatioStats(
            self.total + other.total,
            torch.minimum(self.lowest, other.lowest),
            torch.maximum(self.highest, other.highest),
            self.histogram_B + other.histogram_B,
        )

    def mean(self) -> float:
        """Mean ratio; 1 without any."""
        count = int(self.histogram_B.sum())
        return float(self.total) / count if count else 1.0

    def quantile(self, share: float) -> float:
        """The ratio that `share` (0 to 1) of all are at most; 1 without any."""
        counts_B = self.histogram_B.cumsum(0)
        if not int(counts_B[-1]):
            return 1.0
        bin_ = int((counts_B < share * int(counts_B[-1])).sum())
        steps = torch.tensor((bin_ - BINS // 2) * _step(), dtype=torch.float64)
        middle = float((steps.sinh() * _FINEST).exp())
        return min(max(middle, float(self.lowest)), float(self.highest))


def _step() -> float:
    return float(torch.tensor(_RANGE / _FINEST, dtype=torch.float64).asinh()) / (BINS // 2)


def _histogram(log_ratio_M: torch.Tensor) -> torch.Tensor:
    bins_M = (log_ratio_M.double() / _FINEST).asinh() / _step() + BINS // 2
    bins_M = bins_M.nan_to_num(BINS // 2).round().clamp(0, BINS - 1).long()
    return torch.zeros(BINS, dtype=torch.int64, device=bins_M.device).index_add_(0, bins_M, torch.ones_like(bins_M))


@dataclass(frozen=True)
class LossStats:
    """Sums over occurrences, as scalars on the device. Add those of all packs with `+`.

    Attributes:
        count: i64, occurrences.
        exact: i64, those whose recorded log-probability is of the context that is trained.
        loss: the loss: policy's, penalty, entropy bonus and the critic's together.
        policy_loss: sum of weight * the policy's loss.
        kl: sum of the estimates of KL(model || reference), nats; 0 without a reference.
        entropy: sum, nats.
        k3: sum of k3 of KL(engine || model) over the exact ones: how far engine and trainer are apart.
        clipped_low: where the ratio was too small and the clip took effect.
        clipped_high: the same for too large.
        cut: where a bound changed the importance weight.
        value_loss: loss of the critic, before its coefficient; 0 without one.
        value_clipped: where a value had moved as far as it may.
        ratio: the policy's ratios, at the level of the algorithm.
        importance: importance weights without bounds; none without `off_policy`.
    """

    count: torch.Tensor
    exact: torch.Tensor
    loss: torch.Tensor
    policy_loss: torch.Tensor
    kl: torch.Tensor
    entropy: torch.Tensor
    k3: torch.Tensor
    clipped_low: torch.Tensor
    clipped_high: torch.Tensor
    cut: torch.Tensor
    value_loss: torch.Tensor
    value_clipped: torch.Tensor
    ratio: RatioStats
    importance: RatioStats

    def __add__(self, other: "LossStats") -> "LossStats":
        return LossStats(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


def no_stats(device: torch.device) -> LossStats:
    """Returns the statistics of no occurrence."""
    zero, none = torch.zeros((), device=device), torch.zeros((), dtype=torch.int64, device=device)
    no_ratio = RatioStats.none(device)
    return LossStats(none, none, zero, zero, zero, zero, zero, none, none, none, zero, none, no_ratio, no_ratio)
