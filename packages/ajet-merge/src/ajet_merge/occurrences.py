"""Occurrences: what the loss is summed over. The forward pass is shared between calls, losses never are."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ._arrays import BoolArray, FloatArray, IntArray
from ._layout import Layout, as_i32, concat_ranges
from .call import Call


@dataclass(frozen=True, eq=False, slots=True)
class Occurrences:
    """One row for each (call, trainable completion token with a predictor), M in all, by call and then by position.

    Two calls that sampled the same tokens are two occurrences of each forest token.

    Attributes:
        token: i32[M], forest index of the token. The hidden state that predicts it is that of `Forest.parent[token]`.
        call: i32[M], index of the call in `Forest.calls`.
        t: i32[M], index of the token in the call's completion.
        logprob: f32[M], bit-equal to the call's.
        advantage: f32[M].
        weight: f32[M]. The loss of a batch is `sum(weight * loss)`, with no later mean.
        context_exact: bool[M]; where False the logprob is that of another context (see `Call.context_exact`).
    """

    token: IntArray
    call: IntArray
    t: IntArray
    logprob: FloatArray
    advantage: FloatArray
    weight: FloatArray
    context_exact: BoolArray

    def __len__(self) -> int:
        return self.token.size


def collect(calls: Sequence[Call], layout: Layout) -> Occurrences:
    """The occurrences of all calls in canonical order."""
    if not calls:
        none, no_number = as_i32([]), np.empty(0, np.float32)
        return Occurrences(none, none, none, no_number, no_number, no_number, np.empty(0, np.bool_))
    sizes = as_i32([call.completion_ids.size for call in calls])
    trained = np.concatenate([call.mask for call in calls]).astype(np.bool_)
    unpredicted = [index for index, call in enumerate(calls) if call.excluded]
    trained[(np.cumsum(sizes) - sizes)[unpredicted]] = False
    owner = np.repeat(np.arange(len(calls), dtype=np.int32), sizes)[trained]
    return Occurrences(
        token=_completion_tokens(calls, layout)[trained],
        call=owner,
        t=concat_ranges(np.zeros_like(sizes), sizes)[trained],
        logprob=np.concatenate([call.logprobs for call in calls])[trained],
        advantage=np.concatenate([call.advantage for call in calls])[trained],
        weight=np.concatenate([call.weight for call in calls])[trained],
        context_exact=np.array([call.context_exact for call in calls])[owner],
    )


def _completion_tokens(calls: Sequence[Call], layout: Layout) -> IntArray:
    """Forest index of every completion token, masked ones too, call after call."""
    starts: list[int] = []
    lengths: list[int] = []
    tables = layout.start.tolist(), layout.length.tolist(), layout.parent.tolist()
    for call, node in zip(calls, layout.call_node.tolist(), strict=True):
        runs = last_runs(tables, node, call.completion_ids.size)
        starts += (start for start, _ in runs)
        lengths += (length for _, length in runs)
    return concat_ranges(as_i32(starts), as_i32(lengths))


def last_runs(tables: tuple[list[int], list[int], list[int]], node: int, count: int) -> list[tuple[int, int]]:
    """The last `count` tokens of the path that ends with `node`, as (forest index, length) runs from the top down.

    `tables` are the layout's start, length and parent as lists, which are quicker than arrays one number at a time.
    """
    start, length, parent = tables
    runs: list[tuple[int, int]] = []
    while count > 0:
        taken = min(count, length[node])
        runs.append((start[node] + length[node] - taken, taken))
        count -= taken
        node = parent[node]
    runs.reverse()
    return runs
