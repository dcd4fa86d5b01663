"""Linear rows instead of a forest, for models whose layers cannot share one: one row a pass, still exact."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from ajet_merge import Forest, Pack, PathTooLongError, merge

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def linear_packs(forest: Forest, budget: int, level: Literal["rows", "calls"]) -> list[Pack]:
    """Cuts a forest into packs of one path each. They partition the occurrences, as `Forest.packs` does.

    Args:
        forest: all calls.
        budget: most tokens in a pack.
        level: `rows`: the calls of a timeline together, for layers that carry a state from token to token. `calls`:
            each alone, for layers in which a token may change what an earlier one gives.

    Raises:
        PathTooLongError: a call is longer than `budget`.
    """
    rows = [row.calls for row in forest.timelines()] if level == "rows" else [(i,) for i in range(len(forest.calls))]
    bounds = np.searchsorted(forest.occurrences.call, np.arange(len(forest.calls) + 1))
    return [pack for calls in rows for pack in _row_packs(forest, calls, bounds, budget)]


def _row_packs(forest: Forest, calls: Sequence[int], bounds: npt.NDArray[np.int64], budget: int) -> list[Pack]:
    """The pack of one row, with the numbering of the whole forest; none if the row trains nothing."""
    longest = max(calls, key=lambda call: len(forest.calls[call]))
    row = merge([forest.calls[call] for call in calls])
    if row.num_tokens > budget:
        raise PathTooLongError(longest, forest.calls[longest].call_id, row.num_tokens, budget, "budget")
    own = np.concatenate([np.arange(bounds[call], bounds[call + 1], dtype=np.int32) for call in calls])
    path = forest.path(longest)
    return [
        replace(pack, occ_index=own[pack.occ_index], forest_index=path[: pack.num_tokens])
        for pack in row.packs(max(row.num_tokens, 2))
    ]


def use_own_attention(model: "PreTrainedModel") -> None:
    """Gives a model that was loaded for packs transformers' attention back: over one row it needs no other."""
    model.set_attn_implementation("sdpa" if getattr(model, "_supports_sdpa", False) else "eager")
