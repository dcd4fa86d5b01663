"""What the report of an update says beside the figures of its steps."""

import logging
import math
from dataclasses import asdict
from typing import Any

import numpy as np

from ajet_merge import Call
from ajet_server.samples.merge import Batch
from ajet_server.train.step import StepFigures

_log = logging.getLogger(__name__)


def warn_if_nothing_is_learned(batch_id: str, batch: Batch) -> None:
    """Says in the log that every advantage is 0, which looks like training and is none."""
    if not any(call.completion_ids.size and call.advantage.any() for call in batch.calls):
        _log.warning(
            "batch %s: nothing is learned from it. %d of its %d episodes have advantage 0, because the rewards of "
            "their group are equal; the others, if any, sampled no token",
            batch_id,
            int((batch.advantages == 0).sum()),
            batch.advantages.size,
        )


def length_figures(calls: list[Call]) -> dict[str, Any]:
    """Tokens of completions and of whole calls."""
    completions = [call.completion_ids.size for call in calls]
    return {
        "completion_tokens_mean": sum(completions) / max(len(calls), 1),
        "completion_tokens_max": max(completions, default=0),
        "call_tokens_max": max(map(len, calls), default=0),
    }


def reward_figures(batch: Batch) -> dict[str, Any]:
    """Rewards as the clients gave them, and what became of them."""
    return {
        "reward_mean": float(batch.rewards.mean()),
        "reward_std": float(batch.rewards.std()),
        "reward_min": float(batch.rewards.min()),
        "reward_max": float(batch.rewards.max()),
        "advantage_abs_mean": float(np.abs(batch.advantages).mean()),
    }


def finite(figures: StepFigures) -> dict[str, Any]:
    """JSON has no NaN: a figure that is not finite is reported as 0, and only a skipped step has any."""
    return {name: value if math.isfinite(value) else 0.0 for name, value in asdict(figures).items()}
