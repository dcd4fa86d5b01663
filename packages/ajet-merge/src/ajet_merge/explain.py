"""`Forest.explain`: where calls left the path of an earlier call, why as far as tokens tell, and what it cost."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from .call import Call

if TYPE_CHECKING:
    from .forest import Forest

Kind = Literal[
    "nothing_shared",
    "retry",
    "retokenization",
    "white_space",
    "stripped_reasoning",
    "context_removed",
    "context_inserted",
    "context_changed",
]

SAME_AGAIN = 8
"""So many equal tokens in a row after a difference mean that two contexts have come together again."""
TEXT_WINDOW = 16
"""So many tokens on each side are searched for the same text in other tokens."""
REASONING_MARKS = ("<think", "</think", "<|channel|>analysis", "<reasoning")


class Tokenizer(Protocol):
    """What `explain` needs of a tokenizer."""

    def decode(self, token_ids: list[int], /) -> str:
        """The text of these tokens, special ones included if it is up to the tokenizer."""
        ...


@dataclass(frozen=True, slots=True)
class Departure:
    """One place where a call left the longest path that earlier calls had laid.

    Attributes:
        call: index of the call.
        call_id: its id.
        earlier: index of the latest earlier call on that path; None if nothing is shared with any.
        shared: tokens shared, which is also the position of the first different token.
        token: the call's token there.
        earlier_token: the earlier call's.
        text: the call's text from there on, a few tokens of it; None without a tokenizer.
        earlier_text: the earlier call's.
        kind: why, as far as tokens (and text, with a tokenizer) tell:
            nothing_shared: the first token differs from all before, so another agent or another system prompt;
            retry: the same context, sampled again;
            retokenization: the same text in other tokens;
            white_space: texts that differ in white space only;
            stripped_reasoning: a part with reasoning marks is gone, and what follows is the same again;
            context_removed, context_inserted: a part is gone or new, and what follows is the same again;
            context_changed: none of these.
        cost: tokens of the call's prompt that would have been shared, had it followed the earlier path.
    """

    call: int
    call_id: str
    earlier: int | None
    shared: int
    token: int
    earlier_token: int | None
    text: str | None
    earlier_text: str | None
    kind: Kind
    cost: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """All departures of a forest, in the order of the calls. `str()` gives a report, one line each.

    Attributes:
        departures: where calls left earlier paths. A call that extends an earlier one, or lies within one, has none.
    """

    departures: tuple[Departure, ...]

    def as_dicts(self) -> list[dict[str, Any]]:
        """The departures as plain dicts, ready for JSON."""
        return [asdict(departure) for departure in self.departures]

    def __str__(self) -> str:
        if not self.departures:
            return "every call extends an earlier one or lies within one"
        total = sum(departure.cost for departure in self.departures)
        return "\n".join(
            [*map(_line, self.departures), f"{len(self.departures)} departures cost {total} prompt tokens"]
        )


def _line(found: Departure) -> str:
    name = f"call {found.call} ({found.call_id!r})"
    if found.earlier is None:
        return f"{name} shares nothing with earlier calls"
    ours = f"{found.token}" if found.text is None else f"{found.token} {found.text!r}"
    theirs = f"{found.earlier_token}" if found.earlier_text is None else f"{found.earlier_token} {found.earlier_text!r}"
    where = f"{name} left call {found.earlier} at position {found.shared}"
    return f"{where}: {found.kind}, {ours} instead of {theirs}, cost {found.cost}"


def explain(forest: "Forest", tokenizer: Tokenizer | None) -> Explanation:
    """See `Forest.explain`."""
    latest: dict[int, int] = {}  # node -> the latest call so far that passes through it
    ended: set[int] = set()  # nodes that a call so far ends with
    roots: set[str] = set()  # compat_keys so far
    departures: list[Departure] = []
    for index, call in enumerate(forest.calls):
        nodes = _nodes(forest, index)
        known = next((node for node in nodes if node in latest), None)
        inside = known == nodes[0]
        if known is None and call.compat_key in roots:
            departures.append(_departure(forest.calls, index, None, 0, tokenizer))
        elif known is not None and not inside and known not in ended:
            shared = int(forest.layout.depth[known] + forest.layout.length[known])
            departures.append(_departure(forest.calls, index, latest[known], shared, tokenizer))
        latest.update(dict.fromkeys(nodes, index))
        ended.add(nodes[0])
        roots.add(call.compat_key)
    return Explanation(tuple(departures))


def _nodes(forest: "Forest", call_index: int) -> list[int]:
    """The nodes on a call's path, the last first."""
    nodes: list[int] = []
    node = int(forest.layout.call_node[call_index])
    while node >= 0:
        nodes.append(node)
        node = int(forest.layout.parent[node])
    return nodes


def _departure(
    calls: Sequence[Call], index: int, earlier: int | None, shared: int, tokenizer: Tokenizer | None
) -> Departure:
    call = calls[index]
    ours = _after(call, shared)
    theirs = None if earlier is None else _after(calls[earlier], shared)
    prompt_left = max(call.prompt_ids.size - shared, 0)
    return Departure(
        call=index,
        call_id=call.call_id,
        earlier=earlier,
        shared=shared,
        token=ours[0],
        earlier_token=theirs[0] if theirs else None,
        text=tokenizer.decode(ours[:TEXT_WINDOW]) if tokenizer else None,
        earlier_text=tokenizer.decode(theirs[:TEXT_WINDOW]) if tokenizer and theirs else None,
        kind=_kind(ours, prompt_left, theirs, tokenizer),
        cost=min(len(theirs), prompt_left) if theirs else 0,
    )


def _after(call: Call, position: int) -> list[int]:
    """The tokens of a call from a position on."""
    tokens: list[int] = [*call.prompt_ids.tolist(), *call.completion_ids.tolist()]
    return tokens[position:]


def _kind(ours: list[int], prompt_left: int, theirs: list[int] | None, tokenizer: Tokenizer | None) -> Kind:
    if theirs is None:
        return "nothing_shared"
    if prompt_left == 0:
        return "retry"
    context = ours[:prompt_left]
    if tokenizer and (same := _same_text(context, theirs, tokenizer)):
        return same
    gone = _found_at(context[:SAME_AGAIN], theirs)
    if gone:
        text = tokenizer.decode(theirs[:gone]) if tokenizer else ""
        return "stripped_reasoning" if any(mark in text for mark in REASONING_MARKS) else "context_removed"
    return "context_inserted" if _found_at(theirs[:SAME_AGAIN], context) else "context_changed"


def _same_text(ours: list[int], theirs: list[int], tokenizer: Tokenizer) -> Kind | None:
    """Whether both sides begin with the same text, to the letter or but for white space."""
    texts = {tokenizer.decode(ours[:n]) for n in range(1, 1 + min(len(ours), TEXT_WINDOW))} - {""}
    others = {tokenizer.decode(theirs[:n]) for n in range(1, 1 + min(len(theirs), TEXT_WINDOW))} - {""}
    if texts & others:
        return "retokenization"
    bare, other_bare = ({"".join(text.split()) for text in side} - {""} for side in (texts, others))
    return "white_space" if bare & other_bare else None


def _found_at(part: list[int], whole: list[int]) -> int:
    """Where `part` begins in `whole`; 0 if nowhere, or if it is too short to mean anything (it never begins at 0)."""
    if len(part) < SAME_AGAIN // 2:
        return 0
    last = len(whole) - len(part)
    return next((at for at in range(1, last + 1) if whole[at : at + len(part)] == part), 0)
