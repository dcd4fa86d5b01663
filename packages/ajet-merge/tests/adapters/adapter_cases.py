"""A forest with everything that adapters get wrong, a model to run on rows, and the loss they must all come to."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from zlib import crc32

import numpy as np

from ajet_merge import Call, Forest, merge, sequence_mean

CLIP, DUAL_CLIP = 0.2, 3.0
Loss = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def logprob(prefix: Sequence[int]) -> float:
    """A model: the logprob of the last token given those before it. Any shift, mix-up or lost token changes it."""
    return -0.01 - (crc32(np.asarray(prefix, np.int64).tobytes()) % 1000) / 500


def turn(prompt: list[int], completion: list[int], **more: object) -> Call:
    """A call whose rollout logprobs are near the model's, on both sides of the clips."""
    seen = [*prompt, *completion]
    near = [logprob(seen[: len(prompt) + t + 1]) - 0.5 + ((len(prompt) + t) % 3) * 0.5 for t in range(len(completion))]
    return Call(prompt, completion, near, **more)  # type: ignore[arg-type]


def agent_calls() -> list[Call]:
    """Three episodes: turns with tool tokens between, a fork, a call sampled twice, holes in masks."""
    first, second = [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 61, 62, 7, 8]
    calls = [
        turn([1, 2, 3], [4, 5], advantage=1.5, episode_id="a"),
        turn([*first, 61, 62], [7, 8], advantage=1.5, episode_id="a"),
        turn([*second, 63], [9], advantage=-2.0, episode_id="a"),
        turn([1, 2, 3], [4, 5], advantage=-0.5, episode_id="b"),
        turn([*first, 64], [10, 11, 12], advantage=-0.5, mask=[1, 0, 1], episode_id="b"),
        turn([30], [31], advantage=0.75, episode_id="c"),
        turn([40, 41], [42], mask=[0], episode_id="c"),
    ]
    named = [replace(call, call_id=f"call-{index}", group_id="g") for index, call in enumerate(calls)]
    return [replace(call, weight=weight) for call, weight in zip(named, sequence_mean(named), strict=True)]


def agent_forest() -> Forest:
    return merge(agent_calls())


def inexact_forest() -> Forest:
    return merge([replace(call, context_exact=call.call_id != "call-1") for call in agent_calls()])


def importance_sampling(new: np.ndarray, old: np.ndarray, advantage: np.ndarray) -> np.ndarray:
    return -np.exp(new - old) * advantage


def ppo(new: np.ndarray, old: np.ndarray, advantage: np.ndarray) -> np.ndarray:
    ratio = np.exp(new - old)
    return -np.minimum(ratio * advantage, np.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage)


def dual_clip_ppo(new: np.ndarray, old: np.ndarray, advantage: np.ndarray) -> np.ndarray:
    clipped = ppo(new, old, advantage)
    return np.where(advantage < 0, np.minimum(clipped, -DUAL_CLIP * advantage), clipped)


def plain_loss(forest: Forest, loss: Loss, model: Callable[[Sequence[int]], float] = logprob) -> float:
    """sum(weight * loss) over the calls, one after another, straight from their fields."""
    total = 0.0
    for call in forest.calls:
        sequence = [*call.prompt_ids.tolist(), *call.completion_ids.tolist()]
        new = np.array([model(sequence[: call.prompt_ids.size + t + 1]) for t in range(call.completion_ids.size)])
        terms = loss(new, call.logprobs.astype(np.float64), call.advantage.astype(np.float64))
        total += float((call.weight * terms)[call.trained].sum())
    return total
