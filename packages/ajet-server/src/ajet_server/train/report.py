"""What the report of an update says beside the figures of its steps."""

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ajet_core.config_algorithm import Baseline
from ajet_merge import Call
from ajet_server.samples.merge import Batch
from ajet_server.train.minibatch import MiniBatch
from ajet_server.train.step import StepFigures
from ajet_server.worker.protocol import EpisodeRow
from ajet_server.worker.versions import counted

_log = logging.getLogger(__name__)

_NOTHING = {
    "value": ("the policy learns nothing", "no token did better than another by the critic"),
    "others": ("nothing is learned", "the rewards of their group are equal"),
}


def warn_if_nothing_is_learned(batch_id: str, batch: Batch, baseline: Baseline) -> None:
    """Says in the log that every advantage is 0, which looks like training and is none."""
    if not any(call.completion_ids.size and call.advantage.any() for call in batch.calls):
        what, why = _NOTHING["value" if baseline == "value" else "others"]
        _log.warning(
            "batch %s: %s from it. %d of its %d episodes have advantage 0, because %s; the others, if any, sampled no "
            "token",
            batch_id,
            what,
            int((batch.advantages == 0).sum()),
            batch.advantages.size,
            why,
        )


def merge_figures(minis: Sequence[MiniBatch]) -> dict[str, Any]:
    """What merging and packing made of the calls."""
    return {
        "calls": sum(mini.stats.calls for mini in minis),
        "tokens_unmerged": sum(mini.stats.tokens_unmerged for mini in minis),
        "tokens_linear": sum(mini.stats.tokens_linear for mini in minis),
        "tokens_forest": sum(mini.tokens for mini in minis),
        "packs": sum(len(mini.packs) for mini in minis),
    }


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


def staleness_figures(episodes: Sequence[EpisodeRow], trained_version: int) -> dict[str, Any]:
    """How old the sampled tokens are, in versions of the weights before those that are trained.

    Args:
        episodes: the batch.
        trained_version: the version that the update starts from.
    """
    calls = [call for episode in episodes for call in episode.calls]
    tokens: Counter[int] = Counter()
    for call in calls:
        for version, count in counted(call.weight_version, call.version_spans, len(call.completion_ids) // 4):
            tokens[max(trained_version - version, 0)] += count
    oldest, total = max(tokens, default=0), max(tokens.total(), 1)
    return {
        "staleness_mean": sum(age * count for age, count in tokens.items()) / total,
        "staleness_max": oldest,
        "staleness_tokens": [tokens[age] for age in range(oldest + 1)],
        "stale_fraction": sum(count for age, count in tokens.items() if age) / total,
        "mixed_calls": sum(1 for call in calls if call.version_spans),
    }


def finite(figures: StepFigures) -> dict[str, Any]:
    """JSON has no NaN: a figure that is not finite is reported as 0, and only a skipped step has any."""
    return {name: value if math.isfinite(value) else 0.0 for name, value in asdict(figures).items()}
