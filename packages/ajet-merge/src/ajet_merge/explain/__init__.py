"""`Forest.explain`: where calls left the path of an earlier call, why as far as can be known, and what it cost.

trail   which calls left, where, and which earlier call to compare with
align   where the two are the same again, which gives the cost
causes  why: by_messages, by_text (with `templates` and `decoder`), or by ids
explanation, report_text, report_html (with `forest_picture` and `style`)
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ajet_merge.errors import MergeError
from ajet_merge.messages import Context

from .causes import find_cause
from .decoder import Decoder, Tokenizer
from .departure import CAUSES, SAME_CONTENT, Cause, Departure, Evidence
from .explanation import Explanation
from .sides import Finding, Sides
from .trail import Break, find_breaks

if TYPE_CHECKING:
    from ajet_merge.forest import Forest

__all__ = ["CAUSES", "SAME_CONTENT", "Cause", "Departure", "Evidence", "Explanation", "Tokenizer", "explain"]

TEXT_SHOWN = 16
"""Tokens decoded for `Departure.text`."""


def explain(forest: "Forest", tokenizer: Tokenizer | None, contexts: Sequence[Context | None] | None) -> Explanation:
    """See `Forest.explain`."""
    known = _checked(contexts, len(forest.calls))
    decoder = Decoder(tokenizer) if tokenizer else None
    departures = [
        _departure(found, forest, decoder, known[found.call], known[found.earlier])
        for found in find_breaks(forest, known)
    ]
    return Explanation(tuple(departures), forest, decoder)


def _checked(contexts: Sequence[Context | None] | None, calls: int) -> Sequence[Context | None]:
    if contexts is None:
        return [None] * calls
    if len(contexts) != calls:
        raise MergeError(
            f"{len(contexts)} contexts for {calls} calls: give one for each call, None where there is none"
        )
    for index, context in enumerate(contexts):
        if not isinstance(context, Context | None):  # pyright: ignore[reportUnnecessaryIsInstance]  # may be untyped
            raise MergeError(f"contexts[{index}] is a {type(context).__name__}: must be a Context or None")
    return contexts


def _departure(
    found: Break, forest: "Forest", decoder: Decoder | None, ours: Context | None, theirs: Context | None
) -> Departure:
    sides = Sides(forest.calls[found.call], forest.calls[found.earlier], found.shared)
    try:
        finding = find_cause(sides, decoder, ours, theirs)
    except MergeError as error:  # which names the field of a message
        raise MergeError(f"contexts[{found.earlier}] and contexts[{found.call}]: {error}") from error
    again = finding.again or (sides.runs[0] if sides.runs else None)
    return Departure(
        call=found.call,
        call_id=sides.call.call_id,
        earlier=found.earlier,
        earlier_id=sides.earlier.call_id,
        shared=found.shared,
        token=int(sides.ours[0]),
        earlier_token=int(sides.theirs[0]),
        sampled=sides.sampled,
        text=decoder.text(sides.ours[:TEXT_SHOWN]) if decoder else None,
        earlier_text=decoder.text(sides.theirs[:TEXT_SHOWN]) if decoder else None,
        new=again.new if again else None,
        gone=again.gone if again else None,
        cause=finding.cause,
        evidence=finding.evidence,
        detail=finding.detail,
        cost=_cost(sides, finding),
    )


def _cost(sides: Sides, finding: Finding) -> int:
    """Tokens from the break to the last place in the prompt that repeats the earlier path."""
    ends = [run.new_end for run in sides.runs[-1:]] + ([finding.again.new_end] if finding.again else [])
    if not ends and finding.cause in SAME_CONTENT:  # too short to be found again by ids; then it is no longer than this
        return min(sides.prompt.size, sides.theirs.size)
    return max(ends, default=0)
