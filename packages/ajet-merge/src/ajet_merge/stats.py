"""`ForestStats`: what merging saved."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ._arrays import IntArray
from ._layout import Layout
from .call import Call
from .flops import ModelShape, Work


@dataclass(frozen=True, slots=True)
class Flops:
    """Floating-point operations of one training step; see `ModelShape.training_flops`.

    Attributes:
        unmerged: every call alone.
        linear: the `timelines()`.
        forest: the forest.
    """

    unmerged: int
    linear: int
    forest: int


@dataclass(frozen=True, slots=True)
class ForestStats:
    """What merging saved. Counts of tokens unless said otherwise.

    Attributes:
        tokens_unmerged: what training each call alone would run forward.
        tokens_linear: what training the `timelines()` would.
        tokens_forest: what training the forest does (before it is cut into packs).
        pairs_unmerged: (token, ancestor or itself) pairs of attention, for each call alone.
        pairs_linear: the same for the `timelines()`.
        pairs_forest: the same for the forest.
        calls: number of calls.
        occurrences: number of occurrences, that is terms of the loss.
        predictors: distinct forest tokens whose logits the occurrences need.
        excluded: trainable first tokens that no token predicts, because the prompt is empty; they are not occurrences.
    """

    tokens_unmerged: int
    tokens_linear: int
    tokens_forest: int
    pairs_unmerged: int
    pairs_linear: int
    pairs_forest: int
    calls: int
    occurrences: int
    predictors: int
    excluded: int

    def flops(self, shape: ModelShape) -> Flops:
        """What a training step costs each way, for a model of this shape."""
        return Flops(
            unmerged=shape.training_flops(Work(self.tokens_unmerged, self.pairs_unmerged, self.occurrences)),
            linear=shape.training_flops(Work(self.tokens_linear, self.pairs_linear, self.occurrences)),
            forest=shape.training_flops(Work(self.tokens_forest, self.pairs_forest, self.predictors)),
        )


def find_stats(calls: Sequence[Call], rows: Sequence[int], layout: Layout, predictors: IntArray) -> ForestStats:
    """See `Forest.stats`. `rows` are the lengths of the timelines, `predictors` those of all occurrences."""
    depth, length = layout.depth.astype(np.int64), layout.length.astype(np.int64)
    return ForestStats(
        tokens_unmerged=sum(len(call) for call in calls),
        tokens_linear=sum(rows),
        tokens_forest=layout.tokens.size,
        pairs_unmerged=_pairs(len(call) for call in calls),
        pairs_linear=_pairs(rows),
        pairs_forest=int((depth * length + length * (length + 1) // 2).sum()),
        calls=len(calls),
        occurrences=predictors.size,
        predictors=np.unique(predictors).size,
        excluded=sum(call.excluded for call in calls),
    )


def _pairs(lengths: Iterable[int]) -> int:
    return sum(length * (length + 1) // 2 for length in lengths)
