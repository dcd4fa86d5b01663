"""The cause of a break, read from the messages of both calls."""

from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import numpy as np

from ajet_merge.messages import Context, Message, canonical_fields, canonical_message, canonical_tools, reasoning

from .sides import Finding, Sides, count
from .templates import bare, has_reasoning, mentions_summary, without_reasoning
from .trail import leading_system_messages

REASONING_STARTS = 16
"""Reasoning stands at the beginning of a message: it begins within so many tokens, the marker of the turn included."""
REASONING_GAP = 8
"""So many tokens or more must be gone if reasoning is."""


class _Place(NamedTuple):
    """The message in which a break lies, and how many of its tokens are shared."""

    message: int
    into: int


def by_messages(sides: Sides, ours: Context, theirs: Context) -> Finding | None:
    """What the messages tell; None if not more than the token ids."""
    earlier = [*theirs.messages, *([] if theirs.response is None else [theirs.response])]
    place, both = _place(sides, ours, theirs), min(len(ours.messages), len(earlier))
    at = _common_head(ours.messages, earlier) if place is None else place.message
    if place and at < both and _same(ours.messages[at], earlier[at]):
        return _rendered(sides, place, ours.messages[at], earlier[at])
    systems = leading_system_messages(ours), leading_system_messages(theirs)
    head = place is None or at <= max(systems)  # else neither system prompt nor tools are where it broke
    if head and (found := _before_the_conversation(ours, theirs, systems)):
        return found
    if at < both:
        return _different(sides, ours.messages[at:], earlier[at:], at, at <= max(systems))
    if place is None and at:
        return _all_the_same(sides, ours.messages, earlier)
    return None


def _common_head(ours: tuple[Message, ...], theirs: list[Message]) -> int:
    both = enumerate(zip(ours, theirs, strict=False))
    return next((at for at, (mine, other) in both if not _same(mine, other)), min(len(ours), len(theirs)))


def _same(mine: Message, other: Message) -> bool:
    return mine == other or canonical_message(mine) == canonical_message(other)


def _place(sides: Sides, ours: Context, theirs: Context) -> _Place | None:
    """Where the break lies; None if nothing tells."""
    if sides.sampled:
        return _Place(len(theirs.messages), sides.shared - sides.earlier.prompt_ids.size)
    ends = next((context.message_ends for context in (ours, theirs) if context.message_ends is not None), None)
    if ends is None:
        return None
    message = int(np.searchsorted(ends, sides.shared, side="right"))
    return _Place(message, sides.shared - (int(ends[message - 1]) if message else 0))


def _rendered(sides: Sides, place: _Place, mine: Message, other: Message) -> Finding:
    """The same message in other tokens. Its reasoning, which is no part of what is the same, may be gone or changed."""
    name = _name(place.message, mine)
    if _has_other_reasoning(mine, other):
        return Finding("context_edited", "messages", f"{name} is the same, its reasoning is not")
    dropped = sides.sampled and not _has_reasoning(mine)
    if _has_reasoning(other) and place.into <= REASONING_STARTS and (_is_shorter(sides) or dropped):
        return Finding("stripped_reasoning", "messages", f"{name} is the same without its reasoning")
    if _written_calls(mine) != _written_calls(other):
        return Finding("tool_call_reserialized", "messages", f"{name}: the same arguments, written otherwise")
    return Finding("rendered_differently", "messages", f"{name} is the same, its tokens are not")


def _all_the_same(sides: Sides, ours: tuple[Message, ...], theirs: list[Message]) -> Finding:
    """No message differs, and nothing tells in which one the tokens part."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    stripped = [at for at, (mine, other) in pairs if _has_reasoning(other) and not _has_reasoning(mine)]
    if stripped and _is_shorter(sides):
        name = _name(stripped[0], ours[stripped[0]])
        return Finding("stripped_reasoning", "messages", f"{name} is the same without its reasoning")
    return Finding("rendered_differently", "messages", "the messages are the same, their tokens are not")


def _name(at: int, message: Message) -> str:
    """What a message is called; a role may hold any characters, and not all can be written or seen."""
    return f"message {at} ({repr(message['role'])[1:-1]})"


def _is_shorter(sides: Sides) -> bool:
    """Whether as many tokens are gone as if reasoning was."""
    return bool(sides.runs) and sides.gone.size - sides.new.size >= REASONING_GAP


def _has_reasoning(message: Message) -> bool:
    return _has_inline_reasoning(message) or _has_reasoning_apart(message)


def _has_reasoning_apart(message: Message) -> bool:
    """Whether there is reasoning in a field or a part of its own."""
    found = reasoning(message)
    return bool(found.keys() - {"content"}) or isinstance(found.get("content"), list)


def _has_inline_reasoning(message: Message) -> bool:
    return message["role"] == "assistant" and has_reasoning(_text(message))


def _has_other_reasoning(mine: Message, other: Message) -> bool:
    """Whether the text of mine holds reasoning that the other does not have."""
    return _has_inline_reasoning(mine) and not _has_reasoning_apart(other) and bare(_text(mine)) != bare(_text(other))


def _text(message: Message) -> str:
    """The text of a message, reasoning in it included."""
    content = message.get("content") or ""
    parts: list[Any] = [{"text": content}] if isinstance(content, str) else content
    return "".join(part.get("text") or "" for part in parts if part.get("type", "text") == "text")


def _written_calls(message: Message) -> list[Any]:
    """The arguments of a message's tool calls as they were given, whether text or not."""
    functions = [call.get("function", call) for call in message.get("tool_calls") or ()]
    return [function.get("arguments") for function in functions if isinstance(function, Mapping)]


def _before_the_conversation(ours: Context, theirs: Context, systems: tuple[int, int]) -> Finding | None:
    """Another system prompt, or other tools."""
    prompts = [
        [*map(canonical_message, side.messages[:end])] for side, end in zip((ours, theirs), systems, strict=True)
    ]
    prompt, tools = prompts[0] != prompts[1], canonical_tools(ours.tools) != canonical_tools(theirs.tools)
    if not prompt and not tools:
        return None
    part = " and ".join(name for name, differs in (("system prompt", prompt), ("list of tools", tools)) if differs)
    if not _same_conversation(ours, theirs, systems):
        return Finding("other_agent", "messages", f"another {part}, and another conversation")
    cause = "changed_system_prompt" if prompt else "changed_tools"
    return Finding(cause, "messages", f"another {part}, and then the same conversation")


def _same_conversation(ours: Context, theirs: Context, systems: tuple[int, int]) -> bool:
    mine, other = ours.messages[systems[0] :], theirs.messages[systems[1] :]
    return bool(mine and other) and _same(mine[0], other[0])


def _different(sides: Sides, ours: tuple[Message, ...], theirs: list[Message], at: int, opening: bool) -> Finding:
    """Both have a message at index `at`, and these differ; `ours` and `theirs` begin with them."""
    name = _name(at, ours[0])
    if _but_for_white_space(ours[0]) == _but_for_white_space(theirs[0]):
        return Finding("white_space", "messages", f"{name} differs in white space only")
    if _is_without_reasoning(ours[0], theirs[0]):
        return _without_reasoning(sides, ours[0], name)
    return _changed(ours, theirs, at, opening)


def _without_reasoning(sides: Sides, mine: Message, name: str) -> Finding:
    """A message without the reasoning that stood in its text, or with it in a field of its own."""
    if _has_reasoning_apart(mine) and not _is_shorter(sides):
        return Finding("rendered_differently", "messages", f"{name} is the same, its reasoning in another place")
    return Finding("stripped_reasoning", "messages", f"{name} is the same without its reasoning")


def _changed(ours: tuple[Message, ...], theirs: list[Message], at: int, opening: bool) -> Finding:
    """What was done to messages that differ in more than how they are written."""
    name = _name(at, ours[0])
    new, gone = _same_again(ours, theirs)
    if new == len(ours):
        return _nothing_again(ours, theirs, name, opening)
    if not new:
        return Finding("context_removed", "messages", f"{count(gone, 'message')} gone, from message {at} on")
    if not gone:
        return Finding("context_inserted", "messages", f"{count(new, 'message')} inserted, from message {at} on")
    if new < gone and _size(ours[:new]) < _size(theirs[:gone]):
        detail = f"{count(gone, 'message')} replaced by {new:,} shorter, from message {at} on"
        return Finding("context_compacted", "messages", detail)
    return Finding("context_edited", "messages", f"{name} differs")


def _same_again(ours: tuple[Message, ...], theirs: list[Message]) -> tuple[int, int]:
    """How many messages on each side differ before both are the same again; all of them if they never are."""
    sides = [*map(canonical_message, ours)], [*map(canonical_message, theirs)]
    first = SequenceMatcher(None, *sides, autojunk=False).get_matching_blocks()[0]
    return first.a, first.b


def _nothing_again(ours: tuple[Message, ...], theirs: list[Message], name: str, opening: bool) -> Finding:
    if ours[0]["role"] != "assistant" and _size(ours) < _size(theirs) and mentions_summary(str(ours[0].get("content"))):
        return Finding("context_compacted", "messages", f"{name} speaks of a summary, and stands for all that followed")
    if opening:
        return Finding("other_conversation", "messages", "the first message after the system prompt differs")
    return Finding("context_edited", "messages", f"{name} differs, and nothing after it is the same")


def _size(messages: tuple[Message, ...] | list[Message]) -> int:
    return sum(len(canonical_message(message)) for message in messages)


def _is_without_reasoning(mine: Message, other: Message) -> bool:
    """Whether the text of both is the same, but for reasoning that stands in the other's alone."""
    if not _has_inline_reasoning(other) or _has_inline_reasoning(mine):
        return False
    return _but_for_reasoning(mine) == _but_for_reasoning(other)


def _but_for_reasoning(message: Message) -> dict[str, Any]:
    fields = canonical_fields(message)
    content = fields.get("content", "")
    return {**fields, "content": bare(without_reasoning(content))} if isinstance(content, str) else fields


def _but_for_white_space(message: Message) -> dict[str, Any]:
    fields = canonical_fields(message)
    content = fields.get("content")
    return {**fields, "content": bare(content)} if isinstance(content, str) else fields
