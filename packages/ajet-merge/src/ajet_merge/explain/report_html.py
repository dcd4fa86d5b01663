"""The HTML report: totals, a picture of the forest, and each departure with its tokens side by side."""

from html import escape
from itertools import repeat
from typing import TYPE_CHECKING

from ajet_merge._arrays import IntArray

from .align import equal_prefix
from .departure import CAUSES, Departure
from .forest_picture import picture
from .report_text import name
from .sides import Sides, count
from .style import STYLE

if TYPE_CHECKING:
    from .explanation import Explanation, Total

MOST_SHOWN = 100
"""So many departures are shown with their tokens."""
OPEN = 12
"""So many of these are unfolded."""
CONTEXT = 12
"""So many equal tokens are shown before a difference and after it."""
DIFFERENT = 48
"""So many different tokens are shown on each side."""
_VISIBLE = {" ": "·", "\n": "↵", "\t": "→", "\r": "␍", "\u00a0": "⍽"}


def page(explanation: "Explanation") -> str:
    """See `Explanation.to_html`."""
    shown = sorted(explanation.departures, key=lambda found: (-found.cost, found.call))[:MOST_SHOWN]
    body = [
        "<h1>Where calls left earlier paths</h1>",
        _facts(explanation),
        "<h2>By cause</h2>",
        _table(explanation),
        "<h2>The forest</h2>",
        picture(explanation),
        "<h2>The departures, the costliest first</h2>",
        _how_to_read(explanation, len(shown)),
        *(_departure(explanation, found, at < OPEN) for at, found in enumerate(shown)),
    ]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    title = f"<title>Where calls left earlier paths</title><style>{STYLE}</style>"
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}{title}</head><body>\n' + "\n".join(body) + "\n</body></html>\n"
    )


def _facts(explanation: "Explanation") -> str:
    tokens, cost = explanation.forest.num_tokens, explanation.cost
    facts = [
        (f"{len(explanation.forest.calls):,}", "calls"),
        (f"{len(explanation.departures):,}", "left the path of an earlier one"),
        (f"{tokens:,}", "tokens in the forest"),
        (f"{cost:,}" + (f" ({cost / tokens:.0%})" if tokens else ""), "of these repeat what it holds already"),
    ]
    return '<ul class="facts">' + "".join(f"<li><b>{number}</b>{what}</li>" for number, what in facts) + "</ul>"


def _table(explanation: "Explanation") -> str:
    if not explanation.departures:
        return "<p>Every call goes on where earlier ones ended, or lies within one.</p>"
    numbers = '<th class="number">departures</th><th class="number">cost in tokens</th>'
    rows = "".join(map(_table_row, explanation.by_cause(), repeat(max(explanation.cost, 1))))
    head = f"<tr><th>cause</th>{numbers}<th>what it means</th></tr>"
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>'


def _table_row(total: "Total", cost: int) -> str:
    share = f'<span class="share" style="width:{total.cost / cost:.0%}"></span>' if total.cost else ""
    numbers = f'<td class="number">{total.departures:,}</td><td class="number">{total.cost:,}</td>'
    return f'<tr><td>{_words(total.cause)}{share}</td>{numbers}<td class="soft">{CAUSES[total.cause]}</td></tr>'


def _how_to_read(explanation: "Explanation", shown: int) -> str:
    what = "its text and its id below" if explanation.decoder else "its id (no tokenizer was given)"
    spaces = " White space shows as · ↵ →." if explanation.decoder else ""
    left_out = len(explanation.departures) - shown
    more = f" {count(left_out, 'departure')} of lower or equal cost are not shown." if left_out else ""
    return (
        f'<p class="soft">Each box is a token: {what}.{spaces} Long stretches are cut, and say by how much.{more}</p>'
    )


def _departure(explanation: "Explanation", found: Departure, is_open: bool) -> str:
    names = f"{name(found.call, found.call_id)} left {name(found.earlier, found.earlier_id)}"
    cost = f'<span class="cost">{count(found.cost, "token")}</span>'
    summary = f"{cost}<b>{_words(found.cause)}</b>{escape(names)} at position {found.shared:,}"
    why = f"{escape(found.detail)} <span class=soft>(read from {found.evidence})</span>"
    body = f"<p>{why}</p>{_tokens_of_both(explanation, found)}"
    opened = " open" if is_open else ""
    return f'<details{opened}><summary>{summary}</summary><div class="body">{body}</div></details>'


def _tokens_of_both(explanation: "Explanation", found: Departure) -> str:
    calls = explanation.forest.calls
    sides = Sides(calls[found.call], calls[found.earlier], found.shared)
    ours, theirs = sides.prompt if sides.prompt.size else sides.ours, sides.theirs
    new, gone = ours[: found.new], theirs[: found.gone]
    before = sides.before[-CONTEXT - 1 :]
    pair = (
        _side(explanation, f"call {found.earlier} {_origin(found.sampled)}", "gone", gone, before),
        _side(explanation, f"call {found.call} {_origin(not sides.prompt.size)}", "new", new, before),
    )
    return (
        f"<h3>Shared: {count(found.shared, 'token')}</h3>{_shared(explanation, found, before)}"
        f'<div class="pair">{"".join(pair)}</div>{_again(explanation, found, ours, theirs)}'
    )


def _origin(sampled: bool) -> str:
    return "sampled" if sampled else "has in its prompt"


def _shared(explanation: "Explanation", found: Departure, before: IntArray) -> str:
    boxes = _boxes(explanation, before[-CONTEXT:], before[:-CONTEXT])
    return _row("", boxes, hidden_before=found.shared - len(before[-CONTEXT:]))


def _side(explanation: "Explanation", title: str, kind: str, ids: IntArray, before: IntArray) -> str:
    boxes = _boxes(explanation, ids[:DIFFERENT], before[-1:])
    row = _row(kind, boxes, hidden_after=max(ids.size - DIFFERENT, 0)) if ids.size else '<p class="soft">nothing</p>'
    return f"<div><h3>{title}: {count(ids.size, 'token')}</h3>{row}</div>"


def _again(explanation: "Explanation", found: Departure, ours: IntArray, theirs: IntArray) -> str:
    if found.new is None or found.gone is None:
        return '<p class="soft">The two are not the same again.</p>'
    rest, other = ours[found.new :], theirs[found.gone :]
    equal = equal_prefix(rest, other)
    if not equal:
        return '<p class="soft">The texts are the same again here, and go on in other tokens.</p>'
    where = f"position {found.shared + found.new:,} here, {found.shared + found.gone:,} there"
    title = f"<h3>The same again for {count(equal, 'token')}, from {where}</h3>"
    boxes = _boxes(explanation, rest[: min(equal, CONTEXT)], ours[: found.new][-1:])
    return title + _row("", boxes, hidden_after=max(equal - CONTEXT, 0))


def _row(kind: str, boxes: list[str], hidden_before: int = 0, hidden_after: int = 0) -> str:
    first = [f'<span class="rest">{count(hidden_before, "token")} before …</span>'] if hidden_before else []
    last = [f'<span class="rest">… {hidden_after:,} more</span>'] if hidden_after else []
    return f'<div class="tokens {kind}">' + "".join([*first, *boxes, *last]) + "</div>"


def _boxes(explanation: "Explanation", ids: IntArray, before: IntArray) -> list[str]:
    if explanation.decoder is None:
        return [f"<span><b>{token}</b></span>" for token in ids]
    lead = before[-1:].tolist()
    pieces = explanation.decoder.pieces([*lead, *ids.tolist()])[len(lead) :]
    return [f"<span><b>{visible(piece)}</b><i>{token}</i></span>" for piece, token in zip(pieces, ids, strict=True)]


def visible(text: str) -> str:
    """The text as HTML with its white space and control characters to be seen."""
    return "".join(map(_visible, text)) or "<u>∅</u>"


def _visible(character: str) -> str:
    if character in _VISIBLE:
        return f"<u>{_VISIBLE[character]}</u>"
    return escape(character) if character.isprintable() else f"<u>U+{ord(character):04X}</u>"


def _words(cause: str) -> str:
    return cause.replace("_", " ")
