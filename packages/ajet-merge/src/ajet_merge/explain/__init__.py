"""`Forest.explain`: where calls left the path of an earlier call, why as far as can be known, and what it cost.

contexts  what is known of the messages
trail     which calls left, where, and which earlier call to compare with
align     where the two are the same again, which gives the `cost`
causes    why: by_messages, by_text (with `templates` and `decoder`), or by ids
explanation, report_text, report_html (with `forest_picture` and `style`)
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ajet_merge.messages import Context

from .causes import find_cause
from .contexts import readable
from .cost import cost_of
from .decoder import Decoder, Tokenizer
from .departure import CAUSES, SAME_CONTENT, Cause, Departure, Evidence
from .explanation import Explanation
from .sides import Sides
from .trail import Break, find_breaks

if TYPE_CHECKING:
    from ajet_merge.forest import Forest

__all__ = ["CAUSES", "SAME_CONTENT", "Cause", "Departure", "Evidence", "Explanation", "Tokenizer", "explain"]

TEXT_SHOWN = 16
"""Tokens decoded for `Departure.text`."""


def explain(forest: "Forest", tokenizer: Tokenizer | None, contexts: Sequence[Context | None] | None) -> Explanation:
    """See `Forest.explain`."""
    known = readable(contexts, forest.calls)
    decoder = Decoder(tokenizer) if tokenizer else None
    departures = [
        _departure(found, forest, decoder, known[found.call], known[found.earlier])
        for found in find_breaks(forest, known)
    ]
    return Explanation(tuple(departures), forest, decoder)


def _departure(
    found: Break, forest: "Forest", decoder: Decoder | None, ours: Context | None, theirs: Context | None
) -> Departure:
    sides = Sides(forest.calls[found.call], forest.calls[found.earlier], found.shared)
    finding = find_cause(sides, decoder, ours, theirs)
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
        cost=cost_of(sides, finding),
    )
