"""Policy losses of each occurrence, before weights: what makes good tokens likelier and bad ones less likely."""

import torch


def clipped_loss(
    log_ratio_M: torch.Tensor, advantage_M: torch.Tensor, clip_low: float | None, clip_high: float | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """PPO's clipped surrogate `-min(r A, clip(r, 1 - low, 1 + high) A)`.

    Schulman et al. 2017 (arXiv 1707.06347, eq. 7); with group-relative advantages this is GRPO (arXiv 2402.03300,
    eq. 3) without its KL term. Two bounds as in DAPO (arXiv 2503.14476, eq. 8). With a sequence's ratio it is GSPO
    (arXiv 2507.18071, eq. 5). Without bounds it is the plain surrogate `-r A`, whose gradient at r = 1 is REINFORCE's.

    Args:
        log_ratio_M: logarithm of the ratio r, new / old.
        advantage_M: advantages A.
        clip_low: the ratio is clipped from below at 1 - clip_low; None is no bound.
        clip_high: the ratio is clipped from above at 1 + clip_high; None is no bound.

    Returns:
        (loss_M, low_M, high_M): bool[M] where a bound made the term smaller, so that no gradient flows.
    """
    ratio_M = log_ratio_M.exp()
    clipped_M = _clip(ratio_M, clip_low, clip_high)
    plain_M, bounded_M = ratio_M * advantage_M, clipped_M * advantage_M
    cut_M = (bounded_M < plain_M).detach()
    return -torch.minimum(plain_M, bounded_M), cut_M & (advantage_M < 0), cut_M & (advantage_M > 0)


def weighted_loss(
    logprobs_M: torch.Tensor,
    log_ratio_M: torch.Tensor,
    advantage_M: torch.Tensor,
    clip_low: float | None,
    clip_high: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """CISPO: `-clip(r, 1 - low, 1 + high) A log pi` with the clipped ratio held constant.

    MiniMax-M1 (arXiv 2506.13585, eq. 4). Every token keeps a gradient; only its weight is bounded.

    Args:
        logprobs_M: of the model that is trained.
        log_ratio_M: logarithm of the ratio r, new / old.
        advantage_M: advantages A.
        clip_low: the ratio is clipped from below at 1 - clip_low; None is no bound.
        clip_high: the ratio is clipped from above at 1 + clip_high; None is no bound.

    Returns:
        (loss_M, low_M, high_M): bool[M] where the ratio was below or above its bound.
    """
    ratio_M = log_ratio_M.detach().exp()
    clipped_M = _clip(ratio_M, clip_low, clip_high)
    return -clipped_M * advantage_M * logprobs_M, ratio_M < clipped_M, ratio_M > clipped_M


def _clip(ratio_M: torch.Tensor, low: float | None, high: float | None) -> torch.Tensor:
    if low is None and high is None:
        return ratio_M
    return ratio_M.clamp(None if low is None else 1 - low, None if high is None else 1 + high)
