"""The cause of a break, read from decoded text."""

from typing import NamedTuple

import numpy as np

from ajet_merge._arrays import IntArray

from .align import Run, equal_prefix
from .decoder import INCOMPLETE, Decoder
from .sides import Finding, Sides, count
from .templates import (
    Turn,
    bare,
    has_reasoning_mark,
    has_tool_call,
    in_tools,
    is_reasoning,
    mentions_summary,
    turns,
    with_canonical_json,
    without_reasoning,
)

LEAD = 4
"""Tokens before the break that are decoded along, because the text of a token depends on those before it."""
SAME_TEXT = 32
"""So many tokens on each side are searched for the same text in other tokens."""
FRONT = 64
"""A conversation in a known template has a marker in its first tokens."""
BACK = (128, 1024, 8192, 65_536)
"""So many shared tokens are searched for the beginning of the message, in turn until it is found."""
AHEAD = 1024
"""So many tokens on each side are read at least, to find the end of the message."""
FARTHEST = 8192
"""No more than so many on each side."""
HEAD = frozenset(("system", "tools"))
"""Roles of what stands before a conversation."""


class _View(NamedTuple):
    """The message in which a break lies, on one side."""

    text: str  # from the beginning of the message on
    at: int  # where in `text` the break is
    turns: list[Turn]  # the turns of `text`; the first holds the break

    @property
    def message(self) -> Turn | None:
        """The turn with the break, if all of it is in view."""
        return self.turns[0] if self.turns and self.turns[0].closed else None

    @property
    def answer(self) -> str | None:
        """What the message says without its reasoning, which some templates write as a turn of its own."""
        said = next((turn for turn in self.turns if not is_reasoning(turn)), None)
        return without_reasoning(said.body) if said and said.closed else None


def by_text(sides: Sides, decoder: Decoder) -> Finding | None:
    """What the decoded text tells; None if not more than the token ids."""
    texts = _prefixes(sides, decoder)
    if again := _meeting(texts, sides):
        detail = f"{count(again.gone, 'token')} became {count(again.new, 'token')} of the same text"
        return Finding("retokenization", "text", detail, again)
    back, opening = _start_of_message(sides.before, decoder)
    ours = _view(back, sides.prompt, sides.new.size, sides, decoder)
    theirs = _view(back, sides.theirs, sides.gone.size, sides, decoder)
    return (
        _same_message(ours, theirs)
        or _white_space(texts, sides)
        or _cut_reasoning(sides, decoder)
        or (_system(sides, ours, theirs) if opening else None)
        or (_healed(sides, ours, theirs, back, decoder) if sides.runs else _parted(sides, ours, theirs, opening))
    )


def _prefixes(sides: Sides, decoder: Decoder) -> tuple[list[str], list[str]]:
    """The text of both sides up to 0, 1, 2, ... tokens after the break; empty lists if it differs at once."""
    lead = sides.before[-LEAD:]
    ours, theirs = (np.concatenate([lead, ids[:SAME_TEXT]]) for ids in (sides.prompt, sides.theirs))
    alike = _alike(bare(decoder.text(ours)), bare(decoder.text(theirs)))
    if alike <= len(bare(decoder.text(lead)).rstrip(INCOMPLETE)):
        return [], []

    def texts(ids: IntArray) -> list[str]:
        return [decoder.text(ids[:end]) for end in range(lead.size, ids.size + 1)]

    return texts(ours), texts(theirs)


def _meeting(texts: tuple[list[str], list[str]], sides: Sides) -> Run | None:
    """The first place after the break where the text of both is equal, if they go on alike from there."""
    ours, theirs = texts
    ends = {text: at for at, text in reversed(list(enumerate(theirs))) if text != theirs[0]}
    same = (
        (new, ends[text]) for new, text in enumerate(ours) if new and text in ends and not text.endswith(INCOMPLETE)
    )
    new, gone = next(same, (0, 0))
    if not new:
        return None
    length = equal_prefix(sides.prompt[new:], sides.theirs[gone:])
    over = new == sides.prompt.size or gone == sides.theirs.size
    further = _alike(ours[-1], theirs[-1]) > len(ours[new])
    return Run(new, gone, length) if length or over or further else None


def _alike(one: str, other: str) -> int:
    """How many leading characters are equal."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (mine, yours) in pairs if mine != yours), min(len(one), len(other)))


def _white_space(texts: tuple[list[str], list[str]], sides: Sides) -> Finding | None:
    again = _meeting(([bare(text) for text in texts[0]], [bare(text) for text in texts[1]]), sides)
    return Finding("white_space", "text", "the texts differ in white space only", again) if again else None


def _start_of_message(before: IntArray, decoder: Decoder) -> tuple[str, bool]:
    """The shared text from the latest turn on; and whether only a system prompt can stand before it.

    Where no turn begins in the tokens searched, a few tokens before the break are all that is taken.
    """
    plain = decoder.text(before[-LEAD:])
    if before.size > FRONT and not turns(decoder.text(before[:FRONT])):
        return plain, False
    for size in BACK:
        text = decoder.text(before[-size:])
        if found := turns(text):
            first = before.size <= size and all(turn.role in HEAD for turn in found[:-1])
            return text[found[-1].start :], first
        if before.size <= size:
            break
    return plain, before.size <= LEAD


def _view(back: str, ids: IntArray, gap: int, sides: Sides, decoder: Decoder) -> _View:
    text = back + _text_after(sides.before, ids[: min(max(AHEAD, gap + AHEAD // 4), FARTHEST)], decoder)
    start = max((turn.start for turn in turns(text) if turn.start <= len(back)), default=0)
    return _View(text[start:], len(back) - start, turns(text[start:]))


def _text_after(before: IntArray, ids: IntArray, decoder: Decoder) -> str:
    """The text that tokens add to those before them."""
    lead = before[-LEAD:]
    return decoder.text(np.concatenate([lead, ids]))[len(decoder.text(lead)) :]


def _same_message(ours: _View, theirs: _View) -> Finding | None:
    """Whether the message that holds the break is the same on both sides, but for how it is written."""
    mine, other = ours.message, theirs.message
    if mine is None or other is None or mine.role != other.role or mine.role == "system" or mine.body == other.body:
        return None
    if has_tool_call(mine.body) and has_tool_call(other.body) and _same_json(mine.body, other.body):
        return Finding("tool_call_reserialized", "text", "the tool call is the same, written otherwise")
    if bare(mine.body) == bare(other.body):
        return Finding("white_space", "text", f"the {mine.role} message differs in white space only")
    if ours.answer is None or theirs.answer is None or bare(ours.answer) != bare(theirs.answer):
        return None
    if len(mine.body) < len(other.body):
        return Finding("stripped_reasoning", "text", "the message is the same without its reasoning")
    return Finding("rendered_differently", "text", "the message is the same, with other marks of reasoning")


def _same_json(mine: str, other: str) -> bool:
    mine, other = with_canonical_json(mine), with_canonical_json(other)
    return mine == other or (bare(mine) == bare(other))


def _cut_reasoning(sides: Sides, decoder: Decoder) -> Finding | None:
    """Reasoning that is gone from a message too long to be read to its end."""
    if not sides.runs or sides.gone.size <= sides.new.size:
        return None
    new, gone = (_text_after(sides.before, ids[:FARTHEST], decoder) for ids in (sides.new, sides.gone))
    if turns(new) or turns(gone) or has_reasoning_mark(new) or not has_reasoning_mark(gone):
        return None
    return Finding("stripped_reasoning", "text", "reasoning is gone, and then the message is the same")


def _system(sides: Sides, ours: _View, theirs: _View) -> Finding | None:
    """A break in what stands before the conversation: the system prompt, and the tools in it."""
    roles = {view.turns[0].role for view in (ours, theirs) if view.turns}
    if not roles & HEAD:
        return None
    tools = "tools" in roles or any(in_tools(view.text, view.at) for view in (ours, theirs))
    part = "list of tools" if tools else "system prompt"
    if not sides.runs and not _same_next(ours, theirs):
        return Finding("other_agent", "text", f"another {part}, and nothing that follows is the same")
    cause = "changed_tools" if tools else "changed_system_prompt"
    return Finding(cause, "text", f"another {part}, and then the same conversation")


def _same_next(ours: _View, theirs: _View) -> bool:
    """Whether the messages after the one with the break are equal, too short as they may be for the ids to tell."""
    pair = [
        next((turn for turn in view.turns if turn.role not in ("system", "tools")), None) for view in (ours, theirs)
    ]
    mine, other = pair
    return bool(mine and other and mine.closed and other.closed and mine.body.strip() and mine.body == other.body)


def _healed(sides: Sides, ours: _View, theirs: _View, back: str, decoder: Decoder) -> Finding | None:
    """What was done to the messages between the break and the place where both are the same again."""
    if not ours.turns or not theirs.turns:
        return None
    new, gone = (_turns_within(back, ids, sides, decoder) for ids in (sides.new, sides.gone))
    if not sides.new.size and gone:
        return Finding("context_removed", "text", f"{count(gone, 'message')} gone")
    if not sides.gone.size and new:
        return Finding("context_inserted", "text", f"{count(new, 'message')} inserted")
    if new < gone and sides.new.size < sides.gone.size:
        return Finding("context_compacted", "text", f"{count(gone, 'message')} replaced by shorter text")
    return Finding("context_edited", "text", f"the {ours.turns[0].role} message differs")


def _turns_within(back: str, ids: IntArray, sides: Sides, decoder: Decoder) -> int:
    return len(turns(back + _text_after(sides.before, ids[:FARTHEST], decoder))) - len(turns(back))


def _parted(sides: Sides, ours: _View, theirs: _View, opening: bool) -> Finding | None:
    """A break after which nothing is the same again."""
    if not ours.turns or not theirs.turns:
        return None
    shorter = sides.prompt.size < sides.theirs.size
    if shorter and ours.turns[0].role == "user" and mentions_summary(ours.turns[0].body):
        return Finding("context_compacted", "text", "the rest is replaced by a message that speaks of a summary")
    if opening and ours.turns[0].role == theirs.turns[0].role == "user":
        return Finding("other_conversation", "text", "the first user message differs, and nothing after it is the same")
    return Finding(
        "context_changed", "text", f"the {ours.turns[0].role} message differs, and nothing after it is the same"
    )
