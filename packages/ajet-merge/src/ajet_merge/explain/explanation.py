"""`Explanation`: all departures of a forest, and the reports about them."""

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from .decoder import Decoder
from .departure import CAUSES, Cause, Departure

if TYPE_CHECKING:
    from ajet_merge.forest import Forest


class Total(NamedTuple):
    """What the departures of one cause come to: how many there are, and the sum of their costs in tokens."""

    cause: Cause
    departures: int
    cost: int


@dataclass(frozen=True, eq=False, slots=True)
class Explanation:
    """All departures of a forest, in the order of the calls.

    `str()` gives a report to read in a terminal, `to_html` one with the tokens side by side, `as_dicts` the data.

    Attributes:
        departures: where calls left earlier paths. A call that goes on where earlier ones
            ended, or lies within one, has none.
        forest: the forest explained.
        decoder: the tokenizer given, or None; internal.
    """

    departures: tuple[Departure, ...]
    forest: "Forest" = field(repr=False)
    decoder: Decoder | None = field(repr=False)

    @property
    def cost(self) -> int:
        """The sum of the costs: tokens of the forest that repeat, or write in another way, what it holds already.

        No token is counted twice: each departure costs tokens that its call was the first to bring. So
        `forest.num_tokens - cost` is what the forest would have, had each call that left an earlier one kept that one's
        tokens for what both hold in the same order, and added only what is new. It is an estimate from equal tokens: a
        text that was moved counts as new, and of a rewritten part not known is how much of it says the same.
        """
        return sum(departure.cost for departure in self.departures)

    def by_cause(self) -> list[Total]:
        """The totals of the causes that occur, the costliest first, then the commonest."""
        found = [departure.cause for departure in self.departures]
        totals = [Total(cause, found.count(cause), self._cost_of(cause)) for cause in CAUSES if cause in found]
        return sorted(totals, key=lambda total: (-total.cost, -total.departures))

    def _cost_of(self, cause: Cause) -> int:
        return sum(departure.cost for departure in self.departures if departure.cause == cause)

    def as_dicts(self) -> list[dict[str, Any]]:
        """The departures as plain dicts, ready for JSON."""
        return [asdict(departure) for departure in self.departures]

    def __str__(self) -> str:
        from .report_text import report

        return report(self)

    def to_html(self) -> str:
        """A page for people: one self-contained HTML file that needs no script and loads nothing.

        It has the totals by cause, a picture of the forest, and for each departure both token sequences side by side.
        What is too long or too much to be shown is left out, and the page says how much that is.
        """
        from .report_html import page

        return page(self)
