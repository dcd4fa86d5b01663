"""Which weights sampled which tokens of a call (contract 8: no generation mixes weights without saying so).

Nearly every call is of one version, so what travels and what is stored beside the oldest version is empty then.
"""

from collections.abc import Iterator
from itertools import pairwise

import msgspec

Spans = tuple[tuple[int, int], ...]
"""(first token, weight version) of each run of tokens of one version; empty where all are of one. Both rise, the first
run begins at token 0, and its version is the call's `weight_version`."""

_decoder = msgspec.json.Decoder(Spans)


def whole(weight_version: int, spans: Spans) -> Spans:
    """Returns all runs, that of a call of one version too."""
    return spans or ((0, weight_version),)


def newest(weight_version: int, spans: Spans) -> int:
    """Returns the newest version of a call."""
    return whole(weight_version, spans)[-1][1]


def counted(weight_version: int, spans: Spans, tokens: int) -> Iterator[tuple[int, int]]:
    """Yields (weight version, tokens) of each run of a call of `tokens` tokens."""
    runs = whole(weight_version, spans)
    for (start, version), (end, _) in zip(runs, (*runs[1:], (tokens, 0)), strict=True):
        yield version, end - start


def to_text(spans: Spans) -> str | None:
    """Returns JSON for the ledger, `[[0,3],[17,4]]`; None for a call of one version."""
    return msgspec.json.encode(spans).decode() if spans else None


def of_text(text: str | None) -> Spans:
    """Reads what `to_text` wrote. Raises `msgspec.MsgspecError` for anything else."""
    return _decoder.decode(text) if text is not None else ()


def flaw(weight_version: int, spans: Spans, tokens: int) -> str | None:
    """Returns what is wrong with the runs of a call of `tokens` tokens; None if nothing is."""
    if not spans:
        return None
    starts, versions = zip(*spans, strict=True)
    if len(spans) < 2 or starts[0] != 0 or versions[0] != weight_version:
        return f"has runs {spans}, which do not begin with (0, {weight_version}) and go on"
    if any(count <= 0 for _, count in counted(weight_version, spans, tokens)):
        return f"has runs {spans}, which do not follow each other within {tokens} tokens"
    if any(later <= earlier for earlier, later in pairwise(versions)):
        return f"has runs {spans}, whose versions go back"
    return None
