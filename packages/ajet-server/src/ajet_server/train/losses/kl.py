"""Estimates of KL divergences from the log-probabilities of sampled tokens."""

import torch

from ajet_core.config_algorithm import KlEstimator


def kl_estimate(logprobs_M: torch.Tensor, reference_M: torch.Tensor, estimator: KlEstimator) -> torch.Tensor:
    """Schulman's estimates of KL(model || reference) at tokens that the model sampled, with r = reference / model.

    `k1 = -log r` has no bias and may be negative; `k2 = (log r)^2 / 2` has a bias and, as a loss, the right gradient;
    `k3 = r - 1 - log r` has no bias and is never negative. J. Schulman 2020, "Approximating KL divergence",
    http://joschu.net/blog/kl-approx.html; gradients: Tang and Munos 2025 (arXiv 2506.09477). GRPO uses k3 (arXiv
    2402.03300, eq. 4).

    Args:
        logprobs_M: of the model.
        reference_M: of the reference.
        estimator: `k1`, `k2` or `k3`.

    Returns:
        [M], nats.
    """
    log_ratio_M = reference_M - logprobs_M
    if estimator == "k1":
        return -log_ratio_M
    if estimator == "k2":
        return log_ratio_M.square() / 2
    return torch.expm1(log_ratio_M) - log_ratio_M
