"""Ratios of probabilities, as logarithms: of one token, or of the whole call it belongs to."""

import torch


def unit_mean(values_M: torch.Tensor, unit_M: torch.Tensor) -> torch.Tensor:
    """The mean over the occurrences of the same unit, for each occurrence.

    Of log-ratios it is the logarithm of GSPO's sequence ratio `(pi(y|x) / pi_old(y|x)) ** (1 / |y|)` (Zheng et al.
    2025, arXiv 2507.18071, eq. 7).

    Args:
        values_M: one number for each occurrence.
        unit_M: i64[M], equal where occurrences belong together. All of a unit must be here.

    Returns:
        [M], equal within a unit.
    """
    sums_U, counts_U, local_M = _sums(values_M, unit_M)
    return (sums_U / counts_U)[local_M]


def unit_sum(values_M: torch.Tensor, unit_M: torch.Tensor) -> torch.Tensor:
    """The sum over the occurrences of the same unit, for each: of log-ratios, that of the whole sequence."""
    sums_U, _, local_M = _sums(values_M, unit_M)
    return sums_U[local_M]


def _sums(values_M: torch.Tensor, unit_M: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    _, local_M, counts_U = torch.unique(unit_M, return_inverse=True, return_counts=True)
    return values_M.new_zeros(counts_U.shape).index_add(0, local_M, values_M), counts_U, local_M
