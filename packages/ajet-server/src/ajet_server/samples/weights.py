"""Loss weights: what a token counts in the loss, fixed over the whole batch before anything is merged (contract 5)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

import ajet_merge
from ajet_merge import Call

_MEANS: dict[str, Callable[[Sequence[Call]], list[npt.NDArray[np.float32]]]] = {
    "episode_mean": ajet_merge.episode_mean,
    "token_mean": ajet_merge.token_mean,
}


def with_loss_weights(calls: Sequence[Call], mean: Literal["episode_mean", "token_mean"]) -> list[Call]:
    """Returns the calls with a weight on every trained token, such that the loss is a plain sum.

    `episode_mean`: 1 / (episodes * trained tokens of the episode), GRPO's mean with the episode as the sequence
    (arXiv 2402.03300, eq. 3). `token_mean`: 1 / (trained tokens of the batch), DAPO (arXiv 2503.14476, eq. 8).
    Episodes that train no token have no mean and do not count.
    """
    return [replace(call, weight=weight_C) for call, weight_C in zip(calls, _MEANS[mean](calls), strict=True)]
