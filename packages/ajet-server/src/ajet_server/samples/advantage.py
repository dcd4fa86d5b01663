"""Advantages: how much better an episode was than the others of its group."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

Float32s = npt.NDArray[np.float32]

EQUAL_REWARDS = 1e-6
"""Rewards that spread by no more than this are equal: what is left of their differences is rounding."""


def group_advantages(rewards: Sequence[float], groups: Sequence[str], scale: Literal["std", "none"]) -> Float32s:
    """Group-relative advantages, one number for each episode, however many calls or tokens it has.

    `A_i = (R_i - mean(R)) / std(R)` over the episodes of i's group: GRPO (Shao et al. 2024, arXiv 2402.03300, section
    4.1.2), with the population's standard deviation. With `none` the division is left out: Dr. GRPO (Liu et al. 2025,
    arXiv 2503.20783). In a group whose rewards are all equal nothing was better than anything, so all are exactly 0.

    Args:
        rewards: one finite number for each of the E episodes.
        groups: the group of each episode.
        scale: `std` or `none`.

    Returns:
        f32[E].
    """
    rewards_E = np.asarray(rewards, np.float64)
    _, group_E = np.unique(np.asarray(groups, dtype=np.str_), return_inverse=True)
    advantages_E = np.zeros(rewards_E.size, np.float64)
    for group in range(int(group_E.max(initial=-1)) + 1):
        members = group_E == group
        advantages_E[members] = _relative(rewards_E[members], scale)
    return advantages_E.astype(np.float32)


def _relative(rewards_G: npt.NDArray[np.float64], scale: Literal["std", "none"]) -> npt.NDArray[np.float64]:
    if np.ptp(rewards_G) <= EQUAL_REWARDS:
        return np.zeros_like(rewards_G)
    centred_G = rewards_G - rewards_G.mean()
    return centred_G / rewards_G.std() if scale == "std" else centred_G
