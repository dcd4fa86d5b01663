"""Loss weights: what a token counts in the loss, fixed over the whole batch before anything is merged (contract 5)."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

import ajet_merge
from ajet_core.config import AlgorithmConfig
from ajet_merge import Call

_MEANS: dict[str, Callable[[Sequence[Call]], list[npt.NDArray[np.float32]]]] = {
    "episode_mean": ajet_merge.episode_mean,
    "sequence_mean": ajet_merge.sequence_mean,
    "group_mean": ajet_merge.group_mean,
    "token_mean": ajet_merge.token_mean,
}


def with_loss_weights(calls: Sequence[Call], algorithm: AlgorithmConfig) -> list[Call]:
    """Returns the calls with a weight on every trained token, such that the loss is a plain sum.

    - `episode_mean`: 1 / (episodes * trained tokens of the episode), GRPO's mean with the episode as the sequence
      (arXiv 2402.03300, eq. 3). Only `sequence_mean` depends on how an episode is cut into calls.
    - `sequence_mean`: 1 / (calls * trained tokens of the call).
    - `group_mean`: 1 / (groups * trained tokens of the group), DAPO's as printed (arXiv 2503.14476, eq. 8).
    - `token_mean`: 1 / (trained tokens of the batch), DAPO's as run.
    - `fixed_length`: 1 / (episodes * loss_length), Dr. GRPO (arXiv 2503.20783); with length 1 the loss is that of whole
      episodes, RLOO (arXiv 2402.14740).

    Episodes, calls and groups that train no token have no mean and do not count.
    """
    length = algorithm.loss_length  # there with `fixed_length` and only there
    weights = _MEANS[algorithm.loss_weight](calls) if length is None else _fixed_length(calls, length)
    return [replace(call, weight=weight_C) for call, weight_C in zip(calls, weights, strict=True)]


def _fixed_length(calls: Sequence[Call], length: int) -> list[npt.NDArray[np.float32]]:
    episodes = {call.episode_id for call in calls if call.trained.any()}
    weight = np.float32(1 / (max(len(episodes), 1) * length))
    return [call.trained * weight for call in calls]
