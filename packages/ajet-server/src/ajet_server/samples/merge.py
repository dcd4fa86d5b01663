"""From the rows of a batch to calls that can be merged. A bad row is an error that names it; none is dropped."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ajet_core.config import AlgorithmConfig
from ajet_core.errors import RequestError
from ajet_merge import Call, CallError
from ajet_server.samples.advantage import group_advantages
from ajet_server.samples.weights import with_loss_weights
from ajet_server.worker.protocol import CallRow, EpisodeRow

_LOGPROB_SLACK = 1e-3
"""Nats above 0 that rounding can explain."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A checked batch: E episodes with N calls in all.

    Attributes:
        calls: N calls with their advantages and loss weights.
        temperatures: f32[N], what each call was sampled with. Kept beside the calls: merging does not depend on it.
        rewards: f64[E].
        advantages: f32[E].
        groups: number of different groups.
    """

    calls: list[Call]
    temperatures: npt.NDArray[np.float32]
    rewards: npt.NDArray[np.float64]
    advantages: npt.NDArray[np.float32]
    groups: int


def build_batch(episodes: Sequence[EpisodeRow], algorithm: AlgorithmConfig, vocab_size: int) -> Batch:
    """Checks the rows and gives every call its advantage and its loss weights.

    Raises:
        RequestError: a row breaks the contract of a batch; names the episode or the call, and the value.
    """
    _check_episodes(episodes)
    rewards = [episode.reward for episode in episodes]
    groups = [episode.group_id for episode in episodes]
    advantages_E = group_advantages(rewards, groups, algorithm.advantage_scale)
    calls = [
        _call(row, episode, float(advantage), vocab_size)
        for episode, advantage in zip(episodes, advantages_E, strict=True)
        for row in episode.calls
    ]
    return Batch(
        calls=with_loss_weights(calls, algorithm.loss_weight),
        temperatures=np.array([row.temperature for episode in episodes for row in episode.calls], np.float32),
        rewards=np.array(rewards, np.float64),
        advantages=advantages_E,
        groups=len(set(groups)),
    )


def _check_episodes(episodes: Sequence[EpisodeRow]) -> None:
    if not episodes:
        raise RequestError("the batch holds no episode; an update needs at least one", field="episodes")
    _refuse_repeats([episode.episode_id for episode in episodes], "episode")
    _refuse_repeats([row.call_id for episode in episodes for row in episode.calls], "call")
    for episode in episodes:
        if not np.isfinite(episode.reward):
            raise RequestError(f"episode {episode.episode_id!r}: reward {episode.reward} is not finite", field="reward")


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
