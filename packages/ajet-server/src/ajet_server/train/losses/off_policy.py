"""Importance weights: the model before the update against the engine that sampled."""

import torch

from ajet_core.config_algorithm import OffPolicyConfig
from ajet_server.train.losses.ratio import unit_sum


def importance_weights(
    log_weight_M: torch.Tensor, unit_M: torch.Tensor, config: OffPolicyConfig
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Truncated or masked importance weights. No gradient flows through them.

    With w = model / engine of a token, or its product over the token's call: `truncate` is `min(w, high)` (Espeholt et
    al. 2018, IMPALA, arXiv 1802.01561), `mask` is w between the bounds and 0 outside of them (IcePop, arXiv
    2510.18855). The product makes expectations over whole calls right, and varies the more the longer they are.

    Args:
        log_weight_M: logarithm of model / engine of each token; 0 where the engine's is not known.
        unit_M: i64[M], the call of each occurrence.
        config: kind, level and bounds.

    Returns:
        (weight_M, log_weight_M, cut_M): the bounded weights; at the level that was asked for, the logarithm of the
        weights without bounds, and bool[M] where a bound changed one.
    """
    log_weight_M = log_weight_M.detach()
    if config.level == "sequence":
        log_weight_M = unit_sum(log_weight_M, unit_M)
    plain_M = log_weight_M.exp()
    cut_M = plain_M > config.high
    if config.kind == "truncate":
        return plain_M.clamp(max=config.high), log_weight_M, cut_M
    if config.low is not None:
        cut_M |= plain_M < config.low
    return plain_M.masked_fill(cut_M, 0), log_weight_M, cut_M
