"""Advantages: how much better an episode, or a call of it, was than what it is compared with."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ajet_core.config_algorithm import AdvantageScale, RewardBaseline

Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

EQUAL_REWARDS = 1e-6
"""Rewards that spread by no more than this are equal: what is left of their differences is rounding."""


def episode_advantages(
    rewards: Sequence[float] | Float64s,
    groups: Sequence[str],
    baseline: RewardBaseline = "group_mean",
    scale: AdvantageScale = "std",
) -> Float32s:
    """One number for each episode, however many calls or tokens it has: `(R_i - baseline) / scale`.

    The baseline is taken off:

    - `group_mean`: the mean of i's group. GRPO (Shao et al. 2024, arXiv 2402.03300, section 4.1.2).
    - `leave_one_out`: the mean of the others of i's group, `G / (G - 1)` times the same. RLOO (Ahmadian et al. 2024,
      arXiv 2402.14740, eq. 8).
    - `batch_mean`: the mean of all episodes, as every episode has one advantage. REINFORCE++ (Hu 2025, arXiv
      2501.03262) takes mean and deviation over all tokens, in which long episodes weigh more.

    Then it is divided by the population's standard deviation of the rewards of i's group (`std`), of all numbers that
    the baseline left (`batch_std`; after `group_mean` this is REINFORCE++'s baseline variant), or not at all (`none`;
    Dr. GRPO, Liu et al. 2025, arXiv 2503.20783). Where all rewards that are compared are equal, nothing was better than
    anything and all are exactly 0.

    Args:
        rewards: one finite number for each of the E episodes.
        groups: the group of each episode.
        baseline: `group_mean`, `leave_one_out` or `batch_mean`.
        scale: `std`, `batch_std` or `none`.

    Returns:
        f32[E].
    """
    rewards_E = np.asarray(rewards, np.float64)
    group_E = np.zeros(rewards_E.size, np.int64) if baseline == "batch_mean" else _numbered(groups)
    centred_E = _by_group(rewards_E, group_E, _centred)
    if baseline == "leave_one_out":
        size_E = np.bincount(group_E)[group_E] if group_E.size else group_E
        centred_E *= size_E / np.maximum(size_E - 1, 1)
    if scale == "std":
        centred_E /= _by_group(rewards_E, group_E, _deviation)
    elif scale == "batch_std":
        centred_E /= _deviation(centred_E)
    return centred_E.astype(np.float32)


def process_advantages(
    rewards_N: Float64s,
    episode_N: Int64s,
    groups: Sequence[str],
    baseline: RewardBaseline = "group_mean",
    scale: AdvantageScale = "std",
) -> Float32s:
    """One number for each call, from a reward for each call: the sum of its own and all later ones of its episode.

    Process supervision with GRPO (Shao et al. 2024, arXiv 2402.03300, section 4.1.3): the rewards of all calls of a
    group are centred and divided by their standard deviation together; a call is credited with what came after it.

    Args:
        rewards_N: the reward of each of N calls, finite.
        episode_N: the episode of each, an index into `groups`; an episode's calls stand in the order they were made.
        groups: the group of each episode.
        baseline: as in `episode_advantages`, over calls instead of episodes.
        scale: likewise.

    Returns:
        f32[N].
    """
    names = np.asarray(groups, dtype=np.str_)[episode_N].tolist()
    single_N = episode_advantages(rewards_N, names, baseline, scale).astype(np.float64)
    summed_N = np.zeros_like(single_N)
    for episode in np.unique(episode_N):
        calls = np.flatnonzero(episode_N == episode)
        summed_N[calls] = single_N[calls][::-1].cumsum()[::-1]
    return summed_N.astype(np.float32)


def whitened(values_K: Float64s) -> Float64s:
    """Less their mean, divided by their standard deviation; exactly 0 where all are equal. Returns f64[K]."""
    return _centred(values_K) / _deviation(values_K)


def overlong_cost(lengths_E: npt.NDArray[np.int64], max_tokens: int, buffer: int) -> Float64s:
    """What an episode's reward loses because a completion was nearly too long, or too long: 0 to 1.

    The soft overlong punishment of DAPO (Yu et al. 2025, arXiv 2503.14476, eq. 13): nothing up to `max_tokens -
    buffer` tokens, then a straight line that reaches 1 at `max_tokens`.

    Args:
        lengths_E: tokens of each episode's longest completion.
        max_tokens: where the cost is 1.
        buffer: over how many tokens it grows.

    Returns:
        f64[E].
    """
    return np.clip((lengths_E - (max_tokens - buffer)) / buffer, 0.0, 1.0)


def _numbered(groups: Sequence[str]) -> Int64s:
    return np.unique(np.asarray(groups, dtype=np.str_), return_inverse=True)[1].astype(np.int64)


def _by_group(values_E: Float64s, group_E: Int64s, function: Callable[[Float64s], Float64s | float]) -> Float64s:
    found_E = np.zeros_like(values_E)
    for group in range(int(group_E.max(initial=-1)) + 1):
        members = group_E == group
        found_E[members] = function(values_E[members])
    return found_E


def _centred(rewards_G: Float64s) -> Float64s:
    return np.zeros_like(rewards_G) if all_equal(rewards_G) else rewards_G - rewards_G.mean()


def _deviation(values_G: Float64s) -> float:
    """1 where all are equal: what it divides is 0 then."""
    return 1.0 if all_equal(values_G) else float(values_G.std())


def all_equal(values_G: Float64s) -> bool:
    """Whether they spread by no more than `EQUAL_REWARDS`."""
    return values_G.size == 0 or bool(np.ptp(values_G) <= EQUAL_REWARDS)
