"""Which recorded call a list of messages extends: a trie over messages, as the forest is one over tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ._answers import Answer, Said, closest, said_of
from ._arrays import IntArray
from ._json import numbers_of, same_types
from .call import Call
from .errors import MergeError
from .messages import (
    Context,
    Message,
    canonical_message,
    canonical_tools,
    check_ends,
    check_messages,
    is_spoken,
    plain_message,
)

Scope = tuple[str, str, str]
"""Attempt, compat_key and canonical tools: messages are compared with those of the same scope only."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """The call that a list of messages goes on from. See `Conversations.extends`.

    Attributes:
        call: its index, in the order of adding.
        messages: how many of the given messages are the call's: its request, and its response if `response_included`.
        response_included: True where the messages go on after the call's response. False where they are those of the
            call's own request, sent again.
    """

    call: int
    messages: int
    response_included: bool


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


@dataclass(eq=False, slots=True)
class Turn:
    """One message after all those above it."""

    raw: dict[str, Any]
    """A copy of the message in the form it was last seen in; protected from what callers do to theirs."""
    numbers: dict[Any, Any]
    """What `raw` holds of numbers, see `numbers_of`. Equal ones need not be the same: to Python 1 == True."""
    canonical: str
    """The message's canonical form."""
    parent: "Turn | None"
    depth: int
    children: "dict[str, Turn]" = field(default_factory=dict)  # to call `dict[str, Turn]` takes seven times as long
    latest: "Turn | None" = None
    """The child seen last: compared first, which spares canonical forms for all that was seen before."""
    asked: dict[Answer | None, int] = field(default_factory=dict)
    """By the answer that they extend, the last of the calls whose request ends here."""
    answers: dict[tuple[str, Answer | None], Answer] = field(default_factory=dict)
    """By all that was said and their base, the answers that this message is."""


class Path(NamedTuple):
    """The messages from a root down to a turn, in the form they were last seen in; none holds a number."""

    raws: list[dict[str, Any]]
    turn: Turn


class Found(NamedTuple):
    """What a list of messages extends."""

    answered: Turn
    """The end of the longest prefix that is the request and response of a call; a root if there is none."""
    asked: Turn | None
    """The turn where calls' requests are the whole list; None if there are no such calls."""


class Place(NamedTuple):
    """Where a call belongs, made by `MessageIndex.place`."""

    messages: tuple[Message, ...]
    """Those of the context."""
    start: "Start | None"
    """What is before these; None if that is nothing."""
    request: Turn
    answer: Turn | None
    said: Said | None


class Start(NamedTuple):
    """The end of a recorded call's request or response, for other calls to go on from."""

    turn: Turn
    answer: Answer | None
    """The last answer up to there."""


class MessageIndex:
    """Calls by their messages. Not safe to use from several threads without a lock.

    A search or an addition costs one comparison of dicts for each message seen before in the same form, and a canonical
    form for each other; a search that goes on from the last one compares that one's messages as a whole. Messages are
    copied once, when they are new. Calls of equal messages and responses count as one; where responses of the same
    canonical form differ, in reasoning or ids, a search compares them all.

    Args:
        owner: what errors call it.
    """

    def __init__(self, owner: str = "this tracker") -> None:
        self._owner = owner
        self._roots: dict[Scope, Turn] = {}
        self._ends: dict[tuple[int, bool], Start] = {}
        """By call, the end of its request (False) and of its response (True)."""
        self._paths: dict[Scope, Path] = {}
        """What the last search of each scope came to."""

    def place(
        self,
        context: Context,
        attempt_id: str,
        compat_key: str,
        after: Continuation | Extension | None = None,
        name: str = "",
    ) -> Place:
        """Make room for a call's messages. Changes no later answer by itself; `record` does.

        Args:
            context: its messages; with `after`, those that follow the ones that it stands for.
            attempt_id: its attempt; with `after`, that one's counts.
            compat_key: likewise.
            after: what the messages extend.
            name: what errors begin with.

        Raises:
            MergeError: a message or tool is malformed, or `after` is of another index; names the field.
        """
        start = None if after is None else self._start(after, context, name)
        turn = start.turn if start else self._root(scope_of(attempt_id, compat_key, context.tools, name))
        for index, message in enumerate(context.messages):
            turn = _recorded(turn, message, f"{name}messages[{index}]")
        if context.response is None:
            return Place(context.messages, start, turn, None, None)
        answer = _recorded(turn, context.response, f"{name}response")
        return Place(context.messages, start, turn, answer, said_of(context.response, answer.canonical))

    def place_call(self, call: Call, context: Context, after: Extension | None = None) -> Place:
        """`place` by the names of a call; errors name it. Also refuses a message that ends beyond its prompt."""
        name = f"call {call.call_id!r}"
        check_ends(context, call.prompt_ids.size, name)
        return self.place(context, call.attempt_id, call.compat_key, after, f"{name}: ")

    def record(self, call: int, place: Place) -> None:
        """Let later searches find call number `call` at its place."""
        base = place.start.answer if place.start else _closest_answer(_answered(place.request), place.messages)
        place.request.asked[base] = call
        self._ends[call, False] = Start(place.request, base)
        if place.answer and place.said:
            made = Answer(place.said, place.request.depth, base, call)
            answer = place.answer.answers.setdefault((place.said.text, base), made)
            answer.call = call
            self._ends[call, True] = Start(place.answer, answer)

    def _root(self, scope: Scope) -> Turn:
        return self._roots.get(scope) or self._roots.setdefault(scope, _new_root())

    def _start(self, after: Continuation | Extension, context: Context, name: str) -> Start:
        found = self._ends.get((after.call, after.response_included))
        if found is None or found.turn.depth != after.messages:
            raise MergeError(f"{name}after.call = {after.call}: is not what `extends` of {self._owner} gave")
        if context.tools:
            raise MergeError(f"{name}tools = {len(context.tools)} tools: must be left out, those of `after` are meant")
        return found

    def extends(self, scope: Scope, messages: Sequence[Message]) -> Continuation | None:
        """The call that a list of messages goes on from. Rules and errors: see `Tracker.extends`."""
        found = self.find(scope, messages)
        if found.asked:
            return Continuation(closest(found.asked.asked, messages), len(messages), response_included=False)
        call = best_answer(found.answered, messages)
        return None if call is None else Continuation(call, found.answered.depth, response_included=True)

    def find(self, scope: Scope, messages: Sequence[Message]) -> Found:
        """What a list of messages extends furthest, and where the same was asked.

        Raises:
            MergeError: not a list of messages; names the field.
        """
        check_messages(messages, start=len(messages))
        path = self._begun(scope, messages)
        turn, seen = path.turn, len(messages)
        for index in range(len(path.raws), len(messages)):
            child = _seen_child(turn, messages[index])
            if child is None:
                child = _seen_in_other_form(turn, messages[index], f"messages[{index}]")
                if child is None:
                    seen = index
                    break
            turn = child
            if len(path.raws) == index and not child.numbers:
                path.raws.append(child.raw)
                path = self._paths[scope] = Path(path.raws, child)
        for index in range(seen, len(messages)):  # makes no difference, unless one is malformed
            if not is_spoken(messages[index]):
                canonical_message(messages[index], f"messages[{index}]")
        return Found(_answered(turn), turn if turn.asked and seen == len(messages) else None)

    def _begun(self, scope: Scope, messages: Sequence[Message]) -> Path:
        """The last path, if all of it is the beginning of these messages; else none but the root."""
        path = self._paths.get(scope)
        if path is not None and path.raws == list(messages[: len(path.raws)]):
            return path
        return Path([], self._roots.get(scope) or _new_root())


def best_answer(answered: Turn, messages: Sequence[Message]) -> int | None:
    """Of calls whose responses are the same one of these messages, the one to continue; None if there are none."""
    answer = _closest_answer(answered, messages)
    return answer and answer.call


def scope_of(attempt_id: str, compat_key: str, tools: object, name: str = "") -> Scope:
    """The scope of a call, or of a request that is yet to become one."""
    return attempt_id, compat_key, canonical_tools(tools, name)


def _new_root() -> Turn:
    return Turn({}, {}, "", None, 0)


def _seen_child(turn: Turn, message: Message) -> Turn | None:
    child = turn.latest
    if child is None or child.raw != message:
        return None
    return child if not child.numbers or same_types(child.numbers, message) else None


def _seen_in_other_form(turn: Turn, message: Message, name: str) -> Turn | None:
    """The child of `turn` for a message that is not the latest, which it becomes; None if there is none."""
    child = turn.children.get(canonical_message(message, name)) if turn.children else None
    if child is not None:
        _remember(turn, child, plain_message(message, name))
    return child


def _recorded(turn: Turn, message: Message, name: str) -> Turn:
    """The child of `turn` for a message, made if there is none, and remembered as the latest."""
    child = _seen_child(turn, message)
    if child is None:
        raw = plain_message(message, name)
        canonical = canonical_message(raw, name)
        child = turn.children.get(canonical)
        if child is None:
            child = turn.children[canonical] = Turn(raw, {}, canonical, turn, turn.depth + 1)
        _remember(turn, child, raw)
    return child


def _remember(turn: Turn, child: Turn, raw: dict[str, Any]) -> None:
    child.raw, child.numbers = raw, {} if is_spoken(raw) else numbers_of(raw) or {}
    turn.latest = child


def _answered(turn: Turn) -> Turn:
    """The nearest turn from here upwards that is some call's response; the root if there is none."""
    while not turn.answers and turn.parent is not None:
        turn = turn.parent
    return turn


def _closest_answer(turn: Turn, messages: Sequence[Message]) -> Answer | None:
    if not turn.answers:
        return None
    if len(turn.answers) == 1:  # mostly
        return next(iter(turn.answers.values()))
    answers = {answer.call: answer for answer in turn.answers.values()}
    return answers[closest({answer: call for call, answer in answers.items()}, messages)]
