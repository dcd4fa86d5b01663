"""Baseline `value`: rewards laid on tokens, and the advantage and the return of every token by a critic.

The steps of an episode are its trained tokens, in the order of its calls and of their positions. A call's reward stands
at its last step, the episode's at the last step of all, and after it the value is 0. A call that trains no token hands
its reward to the step before it. What was earned before the first step is dropped: no token had a part in it, and no
return counts it.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ajet_core.config_algorithm import ValueConfig
from ajet_core.errors import RequestError
from ajet_server.samples.advantage import all_equal, whitened
from ajet_server.samples.gae import gae
from ajet_server.samples.merge import Batch

Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CriticFigures:
    """How well the critic knew the returns; all 0 without one.

    Attributes:
        explained_variance: `1 - var(return - value) / var(return)` over the steps, with the values before the update;
            0 where all returns are equal.
        return_mean: mean return of a step.
    """

    explained_variance: float = 0.0
    return_mean: float = 0.0


@dataclass(frozen=True, slots=True)
class Steps:
    """The K steps of a batch, episode by episode.

    Attributes:
        token_K: i64[K], the step's token among the completions of all calls, laid end to end.
        episode_K: i64[K], ascending.
    """

    token_K: Int64s
    episode_K: Int64s

    @classmethod
    def of(cls, batch: Batch) -> "Steps":
        """The trained tokens of all calls, which stand episode by episode in a batch."""
        if not batch.calls:
            return cls(np.empty(0, np.int64), np.empty(0, np.int64))
        trained = [call.trained for call in batch.calls]
        episode_K = np.repeat(batch.episode_N, [int(mask.sum()) for mask in trained])
        return cls(np.flatnonzero(np.concatenate(trained)), episode_K)

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """(first step, end) of each episode that has steps."""
        cuts = [0, *(np.flatnonzero(np.diff(self.episode_K)) + 1).tolist(), self.episode_K.size]
        return list(pairwise(cuts)) if self.episode_K.size else []


def step_rewards(batch: Batch, steps: Steps) -> Float64s:
    """What each step earned, f64[K]."""
    rewards_K = np.zeros(steps.token_K.size)
    if not rewards_K.size:
        return rewards_K
    ends_N = np.append(batch.token_starts[1:], batch.token_calls.size)
    last_N = np.searchsorted(steps.token_K, ends_N) - 1  # the last step up to the end of each call
    reached_N = (last_N >= 0) & (steps.episode_K[last_N] == batch.episode_N)
    np.add.at(rewards_K, last_N[reached_N], _call_rewards(batch)[reached_N])
    return rewards_K


def _call_rewards(batch: Batch) -> Float64s:
    """f64[N], the episode's reward at its last call."""
    if batch.call_rewards is not None:
        return batch.call_rewards
    last_N = np.flatnonzero(np.diff(batch.episode_N, append=-1))
    rewards_N = np.zeros(batch.episode_N.size)
    rewards_N[last_N] = batch.shaped_rewards[batch.episode_N[last_N]]
    return rewards_N


def with_critic(
    batch: Batch, values_S: Float64s, cost_S: Float64s, config: ValueConfig, whiten: bool
) -> tuple[Batch, Float32s, CriticFigures]:
    """Generalized advantage estimates (arXiv 1506.02438) for every token of the batch.

    Made for the whole batch at once, so that mini-batches do not change them.

    Args:
        batch: its S sampled tokens are the completions of its calls, laid end to end.
        values_S: what the critic expected before each; read at trained tokens only.
        cost_S: what each costs: the KL penalty of PPO's reward, 0 without one.
        config: discount and trace.
        whiten: whether advantages get mean 0 and standard deviation 1 over all steps (PPO's code, arXiv 2005.12729).

    Returns:
        (batch, returns_S, figures): the batch with the advantages, which as the returns are 0 at tokens that are not
        trained. `Batch.advantages` are the means of the episodes.

    Raises:
        RequestError: a reward or a cost is so large that an advantage or a return does not fit float32.
    """
    steps = Steps.of(batch)
    values_K = values_S[steps.token_K]
    rewards_K = step_rewards(batch, steps) - cost_S[steps.token_K]
    advantages_K, returns_K = np.zeros_like(values_K), np.zeros_like(values_K)
    for first, end in steps.bounds:
        advantages_K[first:end], returns_K[first:end] = gae(
            rewards_K[first:end], values_K[first:end], config.discount, config.trace
        )
    figures = _figures(advantages_K, returns_K)
    if whiten:
        advantages_K = whitened(advantages_K)
    _refuse_huge(batch, steps, np.maximum(np.abs(advantages_K), np.abs(returns_K)))
    advantages_S, returns_S = np.zeros(values_S.size, np.float32), np.zeros(values_S.size, np.float32)
    advantages_S[steps.token_K], returns_S[steps.token_K] = advantages_K, returns_K
    return _with_advantages(batch, steps, advantages_S), returns_S, figures


def _figures(advantages_K: Float64s, returns_K: Float64s) -> CriticFigures:
    if not returns_K.size:
        return CriticFigures()
    known = 0.0 if all_equal(returns_K) else 1 - float(advantages_K.var() / returns_K.var())
    return CriticFigures(known, float(returns_K.mean()))


def _refuse_huge(batch: Batch, steps: Steps, size_K: Float64s) -> None:
    huge_K = ~(size_K <= np.finfo(np.float32).max)
    if huge_K.any():
        episode = int(steps.episode_K[np.argmax(huge_K)])
        raise RequestError(
            f"reward {batch.rewards[episode]} of episode {episode} of the batch (counted from 0), or what its calls "
            "earned, or paid as KL penalty, is too large: advantages and returns must fit 32 bits",
            field="reward",
        )


def _with_advantages(batch: Batch, steps: Steps, advantages_S: Float32s) -> Batch:
    starts = batch.token_starts.tolist()
    calls = [
        replace(call, advantage=advantages_S[start : start + call.completion_ids.size])
        for call, start in zip(batch.calls, starts, strict=True)
    ]
    episodes = batch.rewards.size
    sums_E = np.bincount(steps.episode_K, advantages_S[steps.token_K], episodes)
    counts_E = np.bincount(steps.episode_K, minlength=episodes)
    return replace(batch, calls=calls, advantages=(sums_E / np.maximum(counts_E, 1)).astype(np.float32))
