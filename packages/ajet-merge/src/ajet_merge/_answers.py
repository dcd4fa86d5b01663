"""Of calls whose responses are the same message in their canonical form, the one that messages go on from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import compress
from operator import eq
from typing import Any, NamedTuple

from ._json import json_text
from .messages import Message, canonical_message, is_canonical, plain_message, reasoning


class Said(NamedTuple):
    """A response as the choice between calls sees it, by what tells most."""

    text: str
    """All of it, as JSON text."""
    ids: list[Any]
    """The ids of its tool calls in order, then that of the call that it answers; None where there is none."""
    reasoning: dict[str, Any]


@dataclass(eq=False, slots=True)
class Answer:
    """The calls that said the same in every field after the same answers: only their order tells them apart."""

    said: Said
    index: int
    """Where the response stands in a list of messages that extends the calls."""
    base: "Answer | None"
    """The answer that the calls' own requests extend."""
    call: int
    """The call added last."""


def closest(calls: Mapping[Answer | None, int], messages: Sequence[Message]) -> int:
    """The best of the calls: by the answer compared for each, then by the answer before it, then the latest."""
    if len(calls) == 1:  # mostly
        return next(iter(calls.values()))

    @cache
    def given(index: int) -> Said:
        return said_of(messages[index])

    while len(calls) > 1:
        likeness = [tuple(map(eq, answer.said, given(answer.index))) if answer else () for answer in calls]
        most, nearer = max(likeness), dict[Answer | None, int]()
        for answer, call in compress(calls.items(), [like == most for like in likeness]):
            base = answer and answer.base
            nearer[base] = max(call, nearer.get(base, call))
        calls = nearer
    return next(iter(calls.values()))


def said_of(message: Message, canonical: str | None = None) -> Said:
    """What a message is chosen by; `canonical`: its canonical form, where that is known."""
    if is_canonical(message):
        return Said(canonical or canonical_message(message), [None], {})
    plain = plain_message(message)
    ids = [*(call.get("id") for call in plain.get("tool_calls") or ()), plain.get("tool_call_id")]
    return Said(json_text(plain), ids, reasoning(plain))
