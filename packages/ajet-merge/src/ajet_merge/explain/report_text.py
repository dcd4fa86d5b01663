"""The report for a terminal: totals by cause, then one departure a line."""

from typing import TYPE_CHECKING

from .departure import CAUSES, Departure
from .sides import count

if TYPE_CHECKING:
    from .explanation import Explanation


def report(explanation: "Explanation") -> str:
    """See `Explanation`."""
    if not explanation.departures:
        return "every call goes on where earlier ones ended, or lies within one"
    return "\n".join([summary(explanation), "", *_table(explanation), "", *map(line, explanation.departures)])


def summary(explanation: "Explanation") -> str:
    """How many departures there are, and what they cost together."""
    tokens, cost = explanation.forest.num_tokens, explanation.cost
    calls = count(len(explanation.forest.calls), "call")
    departures = count(len(explanation.departures), "departure")
    return f"{calls}, {departures}; {cost:,} of the forest's {count(tokens, 'token')} repeat what it holds already"


def _table(explanation: "Explanation") -> list[str]:
    rows = [("cause", "departures", "cost", "what it means")]
    rows += ((cause, f"{found:,}", f"{cost:,}", CAUSES[cause]) for cause, found, cost in explanation.by_cause())
    width, numbers, costs = (max(len(row[column]) for row in rows) for column in range(3))
    return [f"{cause:<{width}}  {found:>{numbers}}  {cost:>{costs}}  {meaning}" for cause, found, cost, meaning in rows]


def line(found: Departure) -> str:
    """One departure in one line."""
    names = f"{name(found.call, found.call_id)} left {name(found.earlier, found.earlier_id)}"
    why = f"{found.cause} ({found.detail}; read from {found.evidence})"
    ours, theirs = _token(found.token, found.text), _token(found.earlier_token, found.earlier_text)
    return f"{names} at position {found.shared:,}: {why}, {ours} instead of {theirs}, cost {found.cost:,}"


def name(index: int, call_id: str) -> str:
    """How a call is named: its index, and its id if it has one."""
    return f"call {index} ({call_id!r})" if call_id else f"call {index}"


def _token(token: int, text: str | None) -> str:
    return f"{token}" if text is None else f"{token} {text!r}"
