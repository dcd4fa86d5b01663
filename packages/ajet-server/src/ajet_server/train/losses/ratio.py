"""Ratios of probabilities, as logarithms: of one token, or of the whole call it belongs to."""

import torch


def sequence_ratio(log_ratio_M: torch.Tensor, unit_M: torch.Tensor) -> torch.Tensor:
    """The logarithm of the ratio of each occurrence's whole unit, with the gradient of its own token alone.

    The value is GSPO's `(pi(y|x) / pi_old(y|x)) ** (1 / |y|)` (Zheng et al. 2025, arXiv 2507.18071, eq. 7), the
    gradient that of GSPO-token (eq. 14). Where all tokens of a unit have the same advantage and weight, the loss has
    GSPO's own gradient (section 4.3). With GSPO's own ratio every token would be credited with the mean of all of its
    unit: a critic's advantages, or a mask, of single tokens would have no effect.

    Args:
        log_ratio_M: one for each occurrence, with the gradient of its log-probability.
        unit_M: i64[M], equal where occurrences belong together. All of a unit must be here.

    Returns:
        [M], equal within a unit.
    """
    sums_U, counts_U, local_M = _sums(log_ratio_M.detach(), unit_M)
    return (sums_U / counts_U)[local_M] + (log_ratio_M - log_ratio_M.detach())


def unit_sum(values_M: torch.Tensor, unit_M: torch.Tensor) -> torch.Tensor:
    """The sum over the occurrences of the same unit, for each: of log-ratios, that of the whole sequence."""
    sums_U, _, local_M = _sums(values_M, unit_M)
    return sums_U[local_M]


def _sums(values_M: torch.Tensor, unit_M: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    _, local_M, counts_U = torch.unique(unit_M, return_inverse=True, return_counts=True)
    return values_M.new_zeros(counts_U.shape).index_add(0, local_M, values_M), counts_U, local_M
