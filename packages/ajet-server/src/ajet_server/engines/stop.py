"""Finds stop strings in what was sampled, wherever tokens happen to be cut."""

from collections.abc import Sequence

from tokenizers import Tokenizer

from ajet_server.engines.base import IntIds

_MARGIN = 8
"""Tokens decoded before the first that can matter: the first of a window may lack its space or half a character."""


def find_stop(tokenizer: Tokenizer, stops: Sequence[str], completion_ids: IntIds) -> str | None:
    """Returns the stop string that the last token completed; of several, the one that begins first.

    Only the end is decoded, so the cost per token does not grow with the completion: a stop string of n bytes that
    ends in the last token spans at most n tokens. A window, not the tokenizer's own stream decoder: that one raises on
    bytes that are no UTF-8, which a model may well sample.

    Args:
        completion_ids: i32[C], all ids sampled so far; called after each of them.
    """
    if not stops:
        return None
    window = max(len(stop.encode()) for stop in stops) + _MARGIN
    text = tokenizer.decode(completion_ids[-window:].tolist(), skip_special_tokens=False)
    found = [(text.find(stop), stop) for stop in stops if stop in text]
    return min(found)[1] if found else None
