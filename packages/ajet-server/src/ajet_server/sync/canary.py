"""The probe after a sync: engine and trainer must give the same log-probabilities for the same tokens (contract 8)."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

    from ajet_server.engines.base import Engine
    from ajet_server.train.trainer import Trainer

PROBE_TOKENS = 32
"""Length of a probe: long enough to fork, cache and decode, short enough to take no time."""

_TOLERANCE = {"torch.float32": 1e-3, "torch.float64": 1e-3, "torch.bfloat16": 0.1}
"""Nats, by the number format the model computes in.

float32: one-token decoding and a whole pass differ by 1e-6 to 1e-5 because they add in another order; 1e-3 leaves room
for deep models and is far below what old weights or an old prefix cache cause (0.1 to 1). bfloat16 keeps 8 significant
bits, so a logit near 16 is rounded to steps of 1/16, and the differences of a whole model stay near one such step.
"""


def probe_ids(
    vocab_size: int, call_ids: npt.NDArray[np.int32] | None = None, length: int = PROBE_TOKENS, seed: int = 0
) -> npt.NDArray[np.int32]:
    """Returns the i32[<= length] tokens of a probe: the end of a real call when there is one, else a seeded choice."""
    if call_ids is not None and call_ids.size >= 2:
        return np.array(call_ids[-length:], np.int32)
    return np.random.default_rng(seed).integers(0, vocab_size, length).astype(np.int32)


def probe(
    engine: "Engine", trainer: "Trainer", ids: npt.NDArray[np.int32], dtype: "torch.dtype"
) -> tuple[float, float]:
    """Scores `ids` in both.

    Returns:
        (error, tolerance): the largest absolute difference in nats, +inf when a score is not finite, and the largest
        that rounding explains in `dtype`.
    """
    difference = np.abs(engine.score(ids).astype(np.float64) - trainer.score(ids).astype(np.float64))
    error = float(difference.max()) if np.isfinite(difference).all() else float("inf")
    return error, _TOLERANCE[str(dtype)]
