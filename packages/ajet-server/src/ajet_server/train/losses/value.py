"""The loss of the critic."""

import torch


def value_loss(
    values_M: torch.Tensor,
    old_values_M: torch.Tensor,
    returns_M: torch.Tensor,
    weight_M: torch.Tensor,
    clip: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """PPO's clipped value loss: `sum(weight * max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2) / 2)`.

    Not in the paper (arXiv 1707.06347, eq. 9 has the plain square) but in its code; described by Engstrom et al. 2020
    (arXiv 2005.12729, section 3).

    Args:
        values_M: of the model that is trained.
        old_values_M: of the model before the update.
        returns_M: what the values should have been: `samples.gae`.
        weight_M: loss weights over the global batch.
        clip: c, how far a value may move in one update; None is no bound.

    Returns:
        The loss, a scalar; and bool[M], where the clipped term is strictly the larger one, so that no gradient flows.
    """
    plain_M = (values_M - returns_M).square()
    if clip is None:
        return (weight_M * plain_M).sum() / 2, torch.zeros_like(plain_M, dtype=torch.bool)
    near_M = old_values_M + (values_M - old_values_M).clamp(-clip, clip)
    clipped_M = (near_M - returns_M).square()
    return (weight_M * torch.maximum(plain_M, clipped_M)).sum() / 2, (clipped_M > plain_M).detach()
