"""The learning rate over optimizer steps: a warm-up, then constant or a decay."""

import math

import torch

from ajet_core.config import OptimizerConfig


def rate_factor(step: int, config: OptimizerConfig) -> float:
    """What the peak learning rate is multiplied with at optimizer step `step`, which counts from 0.

    The warm-up rises in a straight line and reaches 1 at its last step, so that no step has a rate of 0 (Goyal et al.
    2017, arXiv 1706.02677, section 2.2). `cosine` is half a period without restarts (Loshchilov and Hutter 2016, arXiv
    1608.03983, eq. 5); after `decay_steps` both decays stay at `final_rate_fraction`.

    Returns:
        In (0, 1], or exactly `final_rate_fraction` at the end.
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.schedule == "constant" or config.decay_steps is None:
        return 1.0
    done = min((step - config.warmup_steps) / config.decay_steps, 1.0)
    left = 1 - done if config.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return config.rate_floor + (1 - config.rate_floor) * left


def set_rate(optimizer: torch.optim.Optimizer, config: OptimizerConfig) -> float:
    """Sets the learning rates of the step that comes next, and returns that of the first group of parameters.

    Each group's is a part of its `peak` (`train.step.make_optimizer`).

    The count of steps is the optimizer's own, which checkpoints hold: a continued run goes on where it was.
    """
    taken = max((int(state["step"]) for state in optimizer.state.values()), default=0)
    factor = rate_factor(taken, config)
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * factor
    return optimizer.param_groups[0]["lr"]
