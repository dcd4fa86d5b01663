"""The loss of a value model (critic)."""

import torch


def value_loss(
    values_M: torch.Tensor, old_values_M: torch.Tensor, returns_M: torch.Tensor, weight_M: torch.Tensor, clip: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """PPO's clipped value loss: `sum(weight * max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2) / 2)`.

    Not in the paper but in its code; described by Engstrom et al. 2020 (arXiv 2005.12729, section 3).

    Args:
        values_M: of the model that is trained.
        old_values_M: of the model before the update.
        returns_M: what the values should have been: `samples.gae`.
        weight_M: loss weights over the global batch.
        clip: c, how far a value may move in one update.

    Returns:
        The loss, a scalar; and bool[M], where the clipped term is strictly the larger one, so that no gradient flows.
    """
    near_M = old_values_M + (values_M - old_values_M).clamp(-clip, clip)
    plain_M, clipped_M = (values_M - returns_M).square(), (near_M - returns_M).square()
    return (weight_M * torch.maximum(plain_M, clipped_M)).sum() / 2, (clipped_M > plain_M).detach()
