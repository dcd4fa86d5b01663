"""Which recorded call a list of messages extends: a trie over messages, as the forest is one over tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ._arrays import IntArray
from .call import Call
from .errors import MergeError
from .messages import (
    Context,
    Message,
    canonical_message,
    canonical_tools,
    check_messages,
    plain_message,
    reasoning,
    tool_call_ids,
)

Scope = tuple[str, str, str]
"""Attempt, compat_key and canonical tools: messages are compared with those of the same scope only."""


@dataclass(frozen=True, eq=False, slots=True)
class Extension:
    """The call that a list of messages extends. See `Tracker.extends`.

    Attributes:
        call: its index, in the order of adding.
        ids: i32[n], its exact ids: prompt + completion if `response_included`, else its prompt.
        messages: how many of the given messages these ids stand for.
        response_included: True where the messages go on after the call's response: the new prompt is `ids` + what the
            template puts between that response and the next turn. If the completion was stopped by its length or by a
            stop string, that begins with the end of the turn, which was never sampled. False where the messages are
            those of the call's own request, sent again: `ids` are the new prompt.
    """

    call: int
    ids: IntArray
    messages: int
    response_included: bool


class Found(NamedTuple):
    """Calls whose request and response are the longest such prefix of a list of messages, and those that asked it."""

    messages: int
    """How many messages the request and response of `answered` are; 0 if there are none."""
    answered: Sequence[int]
    asked: Sequence[int]
    """Calls whose request is the whole list."""


@dataclass(eq=False, slots=True)
class _Turn:
    """One message after all those above it."""

    raw: Any
    """A copy of the message in the form it was last recorded in; protected from what callers do to theirs."""
    raw_decides: bool
    """Whether equality with `raw` is equality in canonical form. Not if there are numbers: to Python 1 == True."""
    parent: "_Turn | None"
    depth: int
    children: "dict[str, _Turn]" = field(default_factory=dict[str, "_Turn"])
    latest: "_Turn | None" = None
    """The child recorded last: compared first, which spares canonical forms for all that was seen before."""
    asked: list[int] = field(default_factory=list[int])
    answered: list[int] = field(default_factory=list[int])


class _Answer(NamedTuple):
    """What is remembered of one call, to choose between calls of equal messages."""

    response: Any
    index: int
    """Where the response stands in a list of messages that extends the call."""
    base: int | None
    """The call that this one's own request extends."""


class Place(NamedTuple):
    """Where a call belongs, made by `MessageIndex.place`."""

    messages: tuple[Message, ...]
    request: _Turn
    answer: _Turn | None
    response: Any


class MessageIndex:
    """Calls by their messages. Not safe to use from several threads without a lock.

    A search or an addition costs one comparison of dicts for each message seen before in the same form, and a canonical
    form for each other. Messages are copied once, when they are new.
    """

    def __init__(self) -> None:
        self._roots: dict[Scope, _Turn] = {}
        self._answers: dict[int, _Answer] = {}

    def place(self, call: Call, context: Context) -> Place:
        """Make room for a call's messages. Changes no later answer by itself; `record` does.

        Raises:
            MergeError: a message or tool is malformed; names the call and the field.
        """
        name = f"call {call.call_id!r}: "
        scope = scope_of(call.attempt_id, call.compat_key, context.tools, name)
        turn = self._roots.setdefault(scope, _Turn(None, False, None, 0))
        for index, message in enumerate(context.messages):
            turn = _recorded(turn, message, f"{name}messages[{index}]")
        if context.response is None:
            return Place(context.messages, turn, None, None)
        answer = _recorded(turn, context.response, f"{name}response")
        return Place(context.messages, turn, answer, plain_message(context.response))

    def record(self, call: int, place: Place) -> None:
        """Let later searches find call number `call` at its place."""
        base = self.best_answer(_answered(place.request).answered, place.messages)
        place.request.asked.append(call)
        self._answers[call] = _Answer(place.response, place.request.depth, base)
        if place.answer:
            place.answer.answered.append(call)

    def find(self, scope: Scope, messages: Sequence[Message]) -> Found:
        """All calls of a scope that a list of messages extends furthest, and all that asked the same.

        Raises:
            MergeError: not a list of messages; names the field.
        """
        check_messages(messages, start=len(messages))
        turn = self._roots.get(scope, _Turn(None, False, None, 0))
        seen = len(messages)
        for index, message in enumerate(messages):
            child = _seen_child(turn, message)
            if child is None:
                child = turn.children.get(canonical_message(message, f"messages[{index}]"))
            if child is None:
                seen = index
                break
            turn = child
        for index in range(seen + 1, len(messages)):  # makes no difference, unless one is malformed
            canonical_message(messages[index], f"messages[{index}]")
        return _found(turn, turn.asked if seen == len(messages) else [])

    def best(self, found: Found, messages: Sequence[Message]) -> tuple[int, bool] | None:
        """The call to continue, and whether its response is among the messages. Rules: see `Tracker.extends`."""
        if found.asked:
            asked = [(call, self._answers[call].base) for call in found.asked]
            return self._closest(asked, messages), False
        answer = self.best_answer(found.answered, messages)
        return None if answer is None else (answer, True)

    def best_answer(self, calls: Sequence[int], messages: Sequence[Message]) -> int | None:
        """Of calls whose responses are the same one of these messages, the one to continue; None if there are none."""
        return self._closest([(call, call) for call in calls], messages) if calls else None

    def _closest(self, calls: list[tuple[int, int | None]], messages: Sequence[Message]) -> int:
        """The best of (call, call compared for it): by its response, then by the response before, then the latest."""
        while len({compared for _, compared in calls}) > 1:
            likeness = [self._likeness(compared, messages) for _, compared in calls]
            closest = [pair for pair, like in zip(calls, likeness, strict=True) if like == max(likeness)]
            calls = [(call, None if compared is None else self._answers[compared].base) for call, compared in closest]
        return max(call for call, _ in calls)

    def _likeness(self, call: int | None, messages: Sequence[Message]) -> tuple[bool, ...]:
        if call is None:
            return ()
        answer = self._answers[call]
        given = messages[answer.index]
        return (
            answer.response == given,
            tool_call_ids(answer.response) == tool_call_ids(given),
            reasoning(answer.response) == reasoning(given),
        )


def checked_calls(calls: Iterable[Call]) -> list[Call]:
    """The calls as a list; `MergeError` if one is none."""
    if not isinstance(calls, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise MergeError(f"calls is a {type(calls).__name__}; give a sequence of ajet_merge.Call")
    calls = list(calls)
    if set(map(type, calls)) <= {Call}:
        return calls
    for index, call in enumerate(calls):
        if not isinstance(call, Call):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise MergeError(f"calls[{index}] is a {type(call).__name__}; wrap it in ajet_merge.Call")
    return calls


def checked_contexts(contexts: Iterable[Context | None], calls: int) -> list[Context | None]:
    """The contexts as a list; `MergeError` if it is not one, or None, for each call."""
    contexts = list(contexts)
    if len(contexts) != calls:
        raise MergeError(f"contexts holds {len(contexts)} items for {calls} calls; give one, or None, for each call")
    for index, context in enumerate(contexts):
        if not isinstance(context, Context | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise MergeError(f"contexts[{index}] is a {type(context).__name__}; give an ajet_merge.Context or None")
    return contexts


def scope_of(attempt_id: str, compat_key: str, tools: object, name: str = "") -> Scope:
    """The scope of a call, or of a request that is yet to become one."""
    return attempt_id, compat_key, canonical_tools(tools, name)


def _seen_child(turn: _Turn, message: Message) -> _Turn | None:
    child = turn.latest
    return child if child is not None and child.raw_decides and child.raw == message else None


def _recorded(turn: _Turn, message: Message, name: str) -> _Turn:
    """The child of `turn` for a message, made if there is none, and remembered as the latest."""
    child = _seen_child(turn, message)
    if child is None:
        raw = plain_message(message, name)
        key = canonical_message(raw, name)
        child = turn.children.setdefault(key, _Turn(raw, False, turn, turn.depth + 1))
        child.raw, child.raw_decides = raw, _holds_text_only(raw)
        turn.latest = child
    return child


def _found(turn: _Turn, asked: Sequence[int]) -> Found:
    answered = _answered(turn)
    return Found(answered.depth if answered.answered else 0, answered.answered, asked)


def _answered(turn: _Turn) -> _Turn:
    """The nearest turn from here upwards that is some call's response; the root if there is none."""
    while not turn.answered and turn.parent is not None:
        turn = turn.parent
    return turn


def _holds_text_only(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_holds_text_only, value.values()))
    return all(map(_holds_text_only, value)) if isinstance(value, list) else value is None or isinstance(value, str)
