"""From the rows of a batch to calls that can be merged. A bad row is an error that names it; none is dropped."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from ajet_core.config import AlgorithmConfig
from ajet_core.errors import RequestError
from ajet_merge import Call, CallError
from ajet_server.samples.advantage import episode_advantages, overlong_cost, process_advantages
from ajet_server.samples.roles import parts_of
from ajet_server.samples.weights import with_loss_weights
from ajet_server.worker.protocol import CallRow, EpisodeRow

_LOGPROB_SLACK = 1e-3
"""Nats above 0 that rounding can explain."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A checked batch: E episodes with N calls in all. A role of an episode counts as an episode (`samples.roles`).

    Attributes:
        calls: N calls with their advantages and loss weights.
        temperatures: f32[N], what each call was sampled with. Kept beside the calls: merging does not depend on it.
        episode_N: i64[N], the episode of each call.
        rewards: f64[E], as the clients gave them.
        shaped_rewards: f64[E], what advantages are made of: less the cost of overlong completions.
        call_rewards: f64[N], those of single calls, with the episode's at its last one; None without any.
        advantages: f32[E]; where calls have their own, the mean of the episode's.
        group_names: the group of each episode: what it is compared with.
        wholes: (group, episode) that each is of: different from its own only where it is a role.

    With baseline `value` all advantages are 0 until `samples.credit.with_critic` has made them.
    """

    calls: list[Call]
    temperatures: npt.NDArray[np.float32]
    episode_N: npt.NDArray[np.int64]
    rewards: npt.NDArray[np.float64]
    shaped_rewards: npt.NDArray[np.float64]
    call_rewards: npt.NDArray[np.float64] | None
    advantages: npt.NDArray[np.float32]
    group_names: list[str]
    wholes: list[tuple[str, str]]

    @property
    def groups(self) -> int:
        """Number of different groups, roles not counted apart."""
        return len({group for group, _ in self.wholes})

    @property
    def token_calls(self) -> npt.NDArray[np.int64]:
        """i64[S]: the call of each sampled token, when the completions of all calls are laid end to end."""
        return np.repeat(np.arange(len(self.calls)), self._sizes())

    @property
    def token_starts(self) -> npt.NDArray[np.int64]:
        """i64[N]: where each call's completion begins among these."""
        sizes_N = self._sizes()
        return np.cumsum(sizes_N) - sizes_N

    def _sizes(self) -> npt.NDArray[np.int64]:
        return np.array([call.completion_ids.size for call in self.calls], np.int64)


def build_batch(episodes: Sequence[EpisodeRow], algorithm: AlgorithmConfig, vocab_size: int) -> Batch:
    """Checks the rows and gives every call its advantage and its loss weights.

    Raises:
        RequestError: a row breaks the contract of a batch; names the episode or the call, and the value.
    """
    _check_episodes(episodes)
    parts = parts_of(episodes)
    episodes = [part for part, _ in parts]
    rewards_E = np.array([episode.reward for episode in episodes], np.float64)
    shaped_E = rewards_E - _overlong_costs(episodes, algorithm)
    groups = [episode.group_id for episode in episodes]
    episode_N = np.repeat(np.arange(len(episodes)), [len(episode.calls) for episode in episodes])
    rows = [row for episode in episodes for row in episode.calls]
    call_rewards = _call_rewards(rows, episode_N, shaped_E)
    advantages_E, advantages_N = _advantages(shaped_E, call_rewards, episode_N, groups, algorithm)
    given_N = _given(rows, "advantage")
    if given_N is not None:
        _refuse_unused(rows, algorithm)
        advantages_N, advantages_E = given_N.astype(np.float32), _episode_means(given_N, episode_N, len(episodes))
    calls = [
        _call(row, episodes[episode], float(advantage), vocab_size)
        for row, episode, advantage in zip(rows, episode_N.tolist(), advantages_N, strict=True)
    ]
    return Batch(
        calls=with_loss_weights(calls, algorithm),
        temperatures=np.array([row.temperature for row in rows], np.float32),
        episode_N=episode_N,
        rewards=rewards_E,
        shaped_rewards=shaped_E,
        call_rewards=call_rewards,
        advantages=advantages_E,
        group_names=groups,
        wholes=[(whole.group_id, whole.episode_id) for _, whole in parts],
    )


def advantages_with_kl(batch: Batch, kl_N: npt.NDArray[np.float64], algorithm: AlgorithmConfig) -> Batch:
    """The batch with the advantages of rewards that the distance from the reference model was taken off.

    `R - coef * sum over the tokens of the episode of KL`, before the baseline: RLOO (arXiv 2402.14740, eq. 1). With k1
    the sum is the log-ratio of the whole episode.

    Args:
        batch: of E episodes with N calls.
        kl_N: for each call the sum over its trained tokens of `kl_estimate(engine, reference)`, nats.
        algorithm: with `kl` in place `reward`; nothing changes otherwise.
    """
    if algorithm.kl is None or algorithm.kl.place != "reward":
        return batch
    cost_N = algorithm.kl.coef * kl_N
    rewards_E = batch.shaped_rewards - np.bincount(batch.episode_N, cost_N, minlength=batch.rewards.size)
    call_rewards = None if batch.call_rewards is None else batch.call_rewards - cost_N
    advantages_E, advantages_N = _advantages(rewards_E, call_rewards, batch.episode_N, batch.group_names, algorithm)
    calls = [replace(call, advantage=float(x)) for call, x in zip(batch.calls, advantages_N, strict=True)]
    return replace(batch, calls=calls, advantages=advantages_E)


def _advantages(
    rewards_E: npt.NDArray[np.float64],
    call_rewards: npt.NDArray[np.float64] | None,
    episode_N: npt.NDArray[np.int64],
    groups: list[str],
    algorithm: AlgorithmConfig,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """(f32[E], f32[N]): of episodes and of their calls."""
    baseline, scale = algorithm.baseline, algorithm.advantage_scale
    if baseline == "value":
        return np.zeros(len(groups), np.float32), np.zeros(episode_N.size, np.float32)
    if call_rewards is None:
        advantages_E = episode_advantages(rewards_E, groups, baseline, scale)
        return advantages_E, advantages_E[episode_N]
    advantages_N = process_advantages(call_rewards, episode_N, groups, baseline, scale)
    return _episode_means(advantages_N, episode_N, len(groups)), advantages_N


def _episode_means(
    values_N: npt.NDArray[np.floating], episode_N: npt.NDArray[np.int64], episodes: int
) -> npt.NDArray[np.float32]:
    counts_E = np.bincount(episode_N, minlength=episodes)
    return (np.bincount(episode_N, values_N, episodes) / np.maximum(counts_E, 1)).astype(np.float32)


def _call_rewards(
    rows: list[CallRow], episode_N: npt.NDArray[np.int64], rewards_E: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64] | None:
    """Those of single calls, the episode's added to its last call's; None if there are none."""
    rewards_N = _given(rows, "reward")
    if rewards_N is not None:
        last_N = np.flatnonzero(np.diff(episode_N, append=-1))
        rewards_N[last_N] += rewards_E[episode_N[last_N]]
    return rewards_N


def _given(rows: list[CallRow], name: Literal["reward", "advantage"]) -> npt.NDArray[np.float64] | None:
    """What every row says, f64[N]; None when none says anything."""
    values: list[float | None] = [getattr(row, name) for row in rows]
    if all(value is None for value in values):
        return None
    for row, value in zip(rows, values, strict=True):
        _check(value is not None, row, name, "is missing, but other calls of the batch have one; give all or none")
        _check(value is None or np.isfinite(value), row, name, f"{value} is not finite")
    return np.array(values, np.float64)


def _refuse_unused(rows: list[CallRow], algorithm: AlgorithmConfig) -> None:
    """Where advantages are given, nothing is made of rewards."""
    for row in rows:
        _check(row.reward is None, row, "reward", "has no effect beside an advantage; give one of them")
    if algorithm.baseline == "value":
        raise RequestError(
            "advantages are given, so the critic of algorithm.baseline 'value' has no effect; give rewards",
            field="advantage",
        )
    if algorithm.kl is not None and algorithm.kl.place == "reward":
        raise RequestError("advantages are given, so algorithm.kl in place 'reward' has no effect", field="advantage")
    if algorithm.overlong is not None:
        raise RequestError("advantages are given, so algorithm.overlong has no effect", field="advantage")


def _overlong_costs(episodes: Sequence[EpisodeRow], algorithm: AlgorithmConfig) -> npt.NDArray[np.float64]:
    if algorithm.overlong is None:
        return np.zeros(len(episodes))
    lengths_E = [max((len(row.completion_ids) // 4 for row in episode.calls), default=0) for episode in episodes]
    return overlong_cost(np.array(lengths_E, np.int64), algorithm.overlong.max_tokens, algorithm.overlong.buffer)


def _check_episodes(episodes: Sequence[EpisodeRow]) -> None:
    if not episodes:
        raise RequestError("the batch holds no episode; an update needs at least one", field="episodes")
    _refuse_repeats([episode.episode_id for episode in episodes], "episode")
    _refuse_repeats([row.call_id for episode in episodes for row in episode.calls], "call")
    for episode in episodes:
        for reward in episode.rewards.values() or (episode.reward,):
            if not np.isfinite(reward):
                raise RequestError(f"episode {episode.episode_id!r}: reward {reward} is not finite", field="reward")


def _refuse_repeats(ids: list[str], what: str) -> None:
    repeated = [name for name, count in Counter(ids).items() if count > 1]
    if repeated:
        raise RequestError(
            f"{what} {repeated[0]!r} is in the batch more than once; it would be trained twice", field=what
        )


def _call(row: CallRow, episode: EpisodeRow, advantage: float, vocab_size: int) -> Call:
    _check(row.episode_id == episode.episode_id, row, "episode_id", f"{row.episode_id!r} is not {episode.episode_id!r}")
    temperature_ok = np.isfinite(row.temperature) and row.temperature > 0
    # At temperature 0 the sampled token had probability 1: there is no ratio of probabilities to correct by.
    _check(temperature_ok, row, "temperature", f"{row.temperature} cannot be trained; it must be finite and above 0")
    prompt_P = _array(row, "prompt_ids", row.prompt_ids, "<i4")
    completion_C = _array(row, "completion_ids", row.completion_ids, "<i4")
    logprobs_C = _array(row, "logprobs", row.logprobs, "<f4")
    _check(prompt_P.size > 0, row, "prompt_ids", "is empty; nothing predicts the first sampled token")
    for name, ids in (("prompt_ids", prompt_P), ("completion_ids", completion_C)):
        _check(
            ids.max(initial=0) < vocab_size,
            row,
            name,
            f"{ids.max(initial=0)} is outside the vocabulary of {vocab_size}",
        )
    highest = logprobs_C.max(initial=-np.inf)
    _check(not highest > _LOGPROB_SLACK, row, "logprobs", f"{highest} is above 0: no logarithm of a probability")
    try:
        return Call(
            prompt_P,
            completion_C,
            logprobs_C,
            advantage=advantage,
            call_id=row.call_id,
            episode_id=episode.episode_id,
            group_id=episode.group_id,
        )
    except CallError as error:  # lengths that differ, NaN, negative ids
        raise RequestError(f"episode {episode.episode_id!r}: {error}", field=error.field) from error


def _array(row: CallRow, name: str, data: bytes, dtype: str) -> npt.NDArray[np.int32 | np.float32]:
    _check(len(data) % 4 == 0, row, name, f"holds {len(data)} bytes, which are no whole 4-byte numbers")
    return np.frombuffer(data, dtype)


def _check(right: bool | np.bool_, row: CallRow, name: str, problem: str) -> None:
    if not right:
        raise RequestError(f"episode {row.episode_id!r}, call {row.call_id!r}: {name} {problem}", field=name)
