"""The ways of running one update that are compared: from calls to the gradient."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from transformers import PreTrainedModel

from ajet_merge import Call, Pack, match_texts, merge

from .cases import END, Episodes
from .passes import ATTENTION, PACK_TOKENS, run_calls, run_packs

PADDED_ROWS = 8
"""Calls in a padded batch, TRL's default for a device. Without padding they are `packed`."""


@dataclass(frozen=True)
class Method:
    """One way of running an update.

    Attributes:
        attention: the attention function that its model needs.
        tokens: token positions that run forward, padding included.
        run: all of the work, from the calls on; returns the loss.
    """

    attention: str
    tokens: Callable[[Episodes], int]
    run: Callable[[PreTrainedModel, Episodes], float]


def forest_packs(episodes: Episodes) -> list[Pack]:
    """Everything that calls have in common, once."""
    return merge(episodes.calls).packs(PACK_TOKENS)


def _call_packs(episodes: Episodes) -> list[Pack]:
    """Every call alone."""
    alone = [replace(call, compat_key=f"{index}") for index, call in enumerate(episodes.calls)]
    return merge(alone).packs(PACK_TOKENS)


def _row_packs(calls: Sequence[Call]) -> list[Pack]:
    """The timelines: what is shared is shared along a row, never between rows."""
    keyed: list[Call] = []
    for number, row in enumerate(merge(calls).timelines()):
        keyed += [replace(calls[index], compat_key=f"{number}") for index in row.calls]
    return merge(keyed).packs(PACK_TOKENS)


def text_packs(episodes: Episodes) -> list[Pack]:
    """Rows after text-level matching: other contexts than those that were sampled in, so not exact."""
    return _row_packs(match_texts(episodes.calls, episodes.contexts, end_ids=[END]).calls)


def _padded_tokens(episodes: Episodes) -> int:
    calls = episodes.calls
    batches = [calls[first : first + PADDED_ROWS] for first in range(0, len(calls), PADDED_ROWS)]
    return sum(len(batch) * max(map(len, batch)) for batch in batches)


def _packing(packs: Callable[[Episodes], list[Pack]]) -> Method:
    def tokens(episodes: Episodes) -> int:
        return sum(pack.num_tokens for pack in packs(episodes))

    return Method(ATTENTION, tokens, lambda model, episodes: run_packs(model, packs(episodes)))


METHODS = {
    "padded": Method("sdpa", _padded_tokens, lambda model, episodes: run_calls(model, episodes.calls, PADDED_ROWS)),
    "packed": _packing(_call_packs),
    "linear": _packing(lambda episodes: _row_packs(episodes.calls)),
    "text": _packing(text_packs),
    "forest": _packing(forest_packs),
}


def called_alone(model: PreTrainedModel, episodes: Episodes) -> float:
    """One forward and backward pass for each call by plain transformers: what exactness is measured against."""
    return run_calls(model, episodes.calls, 1)
