"""The probe after a sync: engine and trainer must give the same log-probabilities for the same tokens (contract 8).

That every weight arrived has been compared bit by bit by then. The probe finds what is wrong around the weights: an
adapter that is merged otherwise than it is trained, another model or position encoding, keys of old weights that are
still in use. Rounding hides what is smaller than the tolerance.
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

    from ajet_server.engines.base import Engine
    from ajet_server.train.trainer import Trainer

PROBE_TOKENS = 32
"""Length of a probe: long enough to fill, cache and decode, short enough to take no time."""

_CACHED_END = 4
"""Tokens scored the second time, on top of keys from the prefix cache."""

_TOLERANCE = {"torch.float32": 1e-3, "torch.float64": 1e-3, "torch.bfloat16": 0.5}
"""Nats, by the number format the model computes in.

One-token decoding and a whole pass add in another order. Measured on SmolLM2-135M (30 layers) with right weights, the
largest difference on a probe is 2e-5 in float32; 1e-3 leaves room for deeper models. bfloat16 has 8 significant bits: a
logit near 16 is rounded to steps of 1/16, and the largest difference is 0.12 on text and 0.22 on random ids. So in
bfloat16 only gross faults show.
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
    """Scores `ids` in both: in the engine the second half as a call would sample it, and then the end once more.

    The second time, the engine's prefix cache has the keys of all but the end, if it keeps any. So every part that a
    call goes through is gone through: prefill, decoding, storing in the cache, and reading from it.

    Returns:
        (error, tolerance): the largest absolute difference in nats, +inf when a score is not finite, and the largest
        that rounding explains in `dtype`.
    """
    wanted = trainer.score(ids).astype(np.float64)  # of ids[1:]
    half = (ids.size + 1) // 2
    differences = [
        np.abs(engine.score(ids, start).logprobs.astype(np.float64) - wanted[start - 1 :])
        for start in (half, max(half, ids.size - _CACHED_END))
    ]
    difference = np.concatenate(differences)
    error = float(difference.max()) if np.isfinite(difference).all() else float("inf")
    return error, _TOLERANCE[str(dtype)]
