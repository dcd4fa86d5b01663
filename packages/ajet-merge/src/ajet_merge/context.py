"""Which recorded call a list of messages extends: a trie over messages, as the forest is one over tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ._answers import Answer, Said, closest, said_of
from ._arrays import IntArray
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
    """What `raw` holds of numbers, see `_numbers`. Equal ones need not be the same: to Python 1 == True."""
    parent: "Turn | None"
    depth: int
    children: "dict[str, Turn]" = field(default_factory=dict[str, "Turn"])
    latest: "Turn | None" = None
    """The child seen last: compared first, which spares canonical forms for all that was seen before."""
    asked: dict[Answer | None, int] = field(default_factory=dict[Answer | None, int])
    """By the answer that they extend, the last of the calls whose request ends here."""
    answers: dict[tuple[str, Answer | None], Answer] = field(default_factory=dict[tuple[str, Answer | None], Answer])
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
    """

    def __init__(self) -> None:
        self._roots: dict[Scope, Turn] = {}
        self._ends: dict[tuple[int, bool], Start] = {}
        """By call, the end of its request (False) and of its response (True)."""
        self._paths: dict[Scope, Path] = {}
        """What the last search of each scope came to."""

    def place(self, call: Call, context: Context, after: Extension | None = None) -> Place:
        """Make room for a call's messages. Changes no later answer by itself; `record` does.

        Args:
            call: only its names count.
            context: its messages; with `after`, those that follow the ones that it stands for.
            after: what the messages extend.

        Raises:
            MergeError: a message or tool is malformed, a message ends beyond the prompt, or `after` is of another
                index; names the call and the field.
        """
        name = f"call {call.call_id!r}"
        check_ends(context, call.prompt_ids.size, name)
        scope = scope_of(call.attempt_id, call.compat_key, context.tools, f"{name}: ")
        start = None if after is None else self._start(after, context, name)
        turn = start.turn if start else self._roots.setdefault(scope, Turn({}, {}, None, 0))
        for index, message in enumerate(context.messages):
            turn = _recorded(turn, message, f"{name}: messages[{index}]")
        if context.response is None:
            return Place(context.messages, start, turn, None, None)
        answer = _recorded(turn, context.response, f"{name}: response")
        return Place(context.messages, start, turn, answer, said_of(context.response))

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

    def _start(self, after: Extension, context: Context, name: str) -> Start:
        found = self._ends.get((after.call, after.response_included))
        if found is None or found.turn.depth != after.messages:
            raise MergeError(f"{name}: after.call = {after.call}: is not what `extends` of this tracker gave")
        if context.tools:
            raise MergeError(
                f"{name}: tools = {len(context.tools)} tools: must be left out, those of `after` are meant"
            )
        return found

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
        return Path([], self._roots.get(scope) or Turn({}, {}, None, 0))


def best(found: Found, messages: Sequence[Message]) -> tuple[int, bool] | None:
    """The call to continue, and whether its response is among the messages. Rules: see `Tracker.extends`."""
    if found.asked:
        return closest(found.asked.asked, messages), False
    answer = best_answer(found.answered, messages)
    return None if answer is None else (answer, True)


def best_answer(answered: Turn, messages: Sequence[Message]) -> int | None:
    """Of calls whose responses are the same one of these messages, the one to continue; None if there are none."""
    answer = _closest_answer(answered, messages)
    return answer and answer.call


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


def _seen_child(turn: Turn, message: Message) -> Turn | None:
    child = turn.latest
    if child is None or child.raw != message:
        return None
    return child if not child.numbers or _same_types(child.numbers, message) else None


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
        key = canonical_message(raw, name)
        child = turn.children.setdefault(key, Turn(raw, {}, turn, turn.depth + 1))
        _remember(turn, child, raw)
    return child


def _remember(turn: Turn, child: Turn, raw: dict[str, Any]) -> None:
    child.raw, child.numbers = raw, {} if is_spoken(raw) else _numbers(raw) or {}
    turn.latest = child


def _answered(turn: Turn) -> Turn:
    """The nearest turn from here upwards that is some call's response; the root if there is none."""
    while not turn.answers and turn.parent is not None:
        turn = turn.parent
    return turn


def _closest_answer(turn: Turn, messages: Sequence[Message]) -> Answer | None:
    if not turn.answers:
        return None
    answers = {answer.call: answer for answer in turn.answers.values()}
    return answers[closest({answer: call for call, answer in answers.items()}, messages)]


def _numbers(value: Any) -> Any:
    """What a plain value holds of numbers and booleans, by key or index; None if nothing."""
    if not isinstance(value, dict | list):
        return None if isinstance(value, str) else value
    items: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else enumerate(value)
    return {key: found for key, item in items if (found := _numbers(item)) is not None} or None


def _same_types(numbers: dict[Any, Any], other: Any) -> bool:
    """Whether the numbers of one value and of another, equal one are the same in JSON too."""
    for key, number in numbers.items():  # a plain loop: this is run for every message of every history
        given = other[key]
        if type(number) is dict:
            if not _same_types(number, given):
                return False
        elif type(number) is not type(given) or (not number and repr(number) != repr(given)):  # 0.0 == -0.0
            return False
    return True
