"""What a chat template writes between an assistant's turn and the next one, found by rendering marked messages.

A response is rendered with marks in its text, its thinking and its tool arguments. What follows the last mark, up to
the first end-of-turn token, closes the turn, and what follows from there is the bridge to the next turn.

Whether the template has to be given the whole conversation for that is proven for the shapes of its messages (see
`shapes`): the template is rendered over a conversation of these shapes, over a longer one, and over a short one. If the
bridge is the same in all, the short one is enough from then on, and nothing old is rendered again.
"""

import json
import re
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

from msgspec.structs import replace

from ajet_core.errors import RequestError
from ajet_server.gateway.render import ChatRenderer
from ajet_server.gateway.request import Conversation, Message, Tool
from ajet_server.gateway.shapes import Shape, Shaper, looked_for, messages_of

Put: TypeAlias = Callable[[Conversation], tuple[Sequence[Message], Sequence[Tool] | None]]
"""How a conversation is put to the template: messages (tool arguments as it wants them) and tools."""

LONGEST_HISTORY = 64
"""Shapes. Beyond, nothing is proven, and conversations are rendered whole."""
LONGEST_TURN = 16
"""Shapes since the last response that a short history keeps."""
MOST_SEAMS = 4096

# Random, so that no text of a conversation holds it.
_MARK = f"Zq{secrets.token_hex(8)}"
_MARKS = re.compile(rf"{_MARK}\d+e")


@dataclass(frozen=True, slots=True)
class Seam:
    """Where a response ends in what the template writes, and what that depends on.

    Attributes:
        offset: characters from the end of the response's last piece to the end of its turn (what closes a tool call).
        end: text of the token that ends the turn; "" if the template writes none.
        closes: that token ends the turn whatever follows, and does not rather open the next (as GLM's `<|user|>`).
        local: the bridge is the same after a short history.
        appends: local, all that the call's prompt held stays as it was, and all of the response is written.
        before: text between the opening and a response that is nothing but text; None if it is not written as it is, or
            nothing tells where its turn ends.
        short: messages of the short history.
        opening: the prompt of the short history.
    """

    offset: int
    end: str
    closes: bool
    local: bool
    appends: bool
    short: Sequence[Message]
    opening: str
    before: str | None


class Added(NamedTuple):
    """What a template writes after a call's prompt.

    Attributes:
        written: the response, without the end of its turn; None if the call's prompt is not what comes before it.
        bridge: from the end of the turn, with the token that ends it, to the opening of the next.
    """

    written: str | None
    bridge: str


class _Probe(NamedTuple):
    offset: int
    end: str
    written: str | None
    bridge: str
    opening: str
    before: str | None


class Bridge:
    """From one turn to the next, for one model. Shared by all attempts; safe to use from several threads.

    Args:
        renderer: of the model.
        end_ids: all ids that end a completion.
        put: how a conversation is put to the template.
        opening: text that begins an answer so that it calls a tool, by the conversation and the end of the prompt; ""
            mostly.
        history: `template` follows a template that changes what earlier calls were shown; `keep` does not.
    """

    def __init__(
        self,
        renderer: ChatRenderer,
        end_ids: Collection[int],
        put: Put,
        opening: Callable[[Conversation, str], str],
        history: Literal["template", "keep"] = "template",
    ) -> None:
        self.renderer = renderer
        self.end_ids = frozenset(end_ids)
        self.opening = opening
        self.keeps = history == "keep"
        self.shaper = Shaper(looked_for(renderer.syntax))
        self._put = put
        ends = sorted((re.escape(renderer.token(item)) for item in self.end_ids), key=len, reverse=True)
        self._ends = re.compile("|".join(ends))
        self._seams: dict[object, Seam | None] = {}

    def text(self, conversation: Conversation) -> str:
        """Returns the prompt as the template writes it.

        Raises:
            RequestError: the template refuses these messages.
        """
        return self.renderer.render(*self._put(conversation))

    def seam(self, history: tuple[Shape, ...], shapes: tuple[Shape, ...], answered: Conversation) -> Seam | None:
        """Finds the end of a response, once for all messages of these shapes.

        Args:
            history: shapes of the messages before the response, without loops.
            shapes: of the messages from the response on.
            answered: the response and what comes after it.

        Returns:
            None if the template does not write the response, or does not take such messages.
        """
        known = history if len(history) <= LONGEST_HISTORY else None
        short = _short(history)
        key = (known, short, shapes, bool(answered.tools), answered.tool_choice)
        if key not in self._seams:
            if len(self._seams) >= MOST_SEAMS:
                self._seams.clear()
            self._seams[key] = self._prove(known, short, replace(answered, messages=messages_of(shapes)))
        return self._seams[key]

    def after_short(self, seam: Seam, answered: Conversation) -> Added | None:
        """Returns what is written after a call's prompt, without rendering what came before.

        Args:
            seam: a local one.
            answered: the response and what comes after it.

        Returns:
            None if these messages are not written as others of their shapes are.
        """
        talk = replace(answered, messages=[*seam.short, *answered.messages])
        text = self.text(talk)
        bridge = _after_text(seam, text, answered.messages[0]) or self.after_whole(seam, talk, len(seam.short))
        if bridge is None or not text.endswith(bridge):
            return None
        begins = text.startswith(seam.opening)
        return Added(text[len(seam.opening) : len(text) - len(bridge)] if begins else None, bridge)

    def after_whole(self, seam: Seam, conversation: Conversation, at: int) -> str | None:
        """Returns the bridge after message `at`, from a rendering of everything; None if not all of it is written."""
        messages = list(conversation.messages)
        messages[at], marks = _marked(messages[at])
        tail = _tail(self.text(replace(conversation, messages=messages)), 1 if self.keeps else marks)
        bridge = None if tail is None else tail[seam.offset :]
        return bridge if bridge is not None and bridge.startswith(seam.end) else None

    def _prove(
        self, history: tuple[Shape, ...] | None, short: tuple[Shape, ...], answered: Conversation
    ) -> Seam | None:
        after_short = self._probe(short, answered)
        others = [self._probe(longer, answered) for longer in _longer(history)] if history else []
        chosen = next((probe for probe in [after_short, *others] if probe), None)
        if chosen is None:
            return None
        bridges = {probe and (probe.offset, probe.end, probe.bridge) for probe in [after_short, *others]}
        written = {probe and probe.written for probe in [after_short, *others]}
        local = bool(others) and len(bridges) == 1 and len(short) <= LONGEST_TURN
        appends = local and len(written) == 1 and None not in written
        last = self._probe(short, replace(answered, messages=answered.messages[:1]))
        closes = last is not None and (last.offset, last.end) == (chosen.offset, chosen.end)
        before = after_short.before if after_short and local else None
        return Seam(chosen.offset, chosen.end, closes, local, appends, messages_of(short), chosen.opening, before)

    def _probe(self, history: Sequence[Shape], answered: Conversation) -> _Probe | None:
        """Where the response ends after a history, all of it stand-ins; None if the template does not say."""
        before, (said, *rest) = messages_of(history), answered.messages
        marked, marks = _marked(said)
        seen = [{**rest[0], "content": f"{rest[0]['content']}{_mark(0)}"}, *rest[1:]] if _has_text(rest) else rest
        try:
            opening, plain, text = (
                self.text(replace(answered, messages=[*before, *more])) for more in ([], [said, *rest], [marked, *seen])
            )
        except RequestError:
            return None
        tail = _tail(text.replace(_mark(0), "\0"), 1)
        if tail is None:
            return None
        end = self._ends.search(tail.partition("\0")[0])
        offset = end.start() if end else 0
        bridge = tail[offset:].replace("\0", "")
        if not plain.endswith(bridge):
            return None
        whole = plain.startswith(opening) and len(set(_MARKS.findall(text)) - {_mark(0)}) == marks
        written = plain[len(opening) : len(plain) - len(bridge)] if whole else None
        before, found, _ = text[len(opening) :].partition(f"{said['content']}{_mark(1)}")
        known = found and whole and end and said.keys() == {"role", "content"} and said["content"]
        return _Probe(offset, end.group() if end else "", written, bridge, opening, before if known else None)


def _after_text(seam: Seam, text: str, response: Message) -> str | None:
    """The bridge after a response that is nothing but text, if it stands where its shape does; None if it does not."""
    if seam.before is None:
        return None
    start = f"{seam.opening}{seam.before}{response['content']}"
    bridge = text[len(start) + seam.offset :]
    return bridge if text.startswith(start) and bridge.startswith(seam.end) else None


def _mark(number: int) -> str:
    return f"{_MARK}{number}e"


def _marked(message: Message) -> tuple[Message, int]:
    """A response with marks at the end of everything that it says, and how many they are."""
    marked, calls, marks = dict(message), message.get("tool_calls") or [], 0
    for field in ("content", "reasoning_content"):
        if message.get(field) or (field == "content" and not calls):
            marks += 1
            marked[field] = message[field] + _mark(marks)
    if calls:
        marked["tool_calls"] = [_marked_call(call, _mark(marks + index)) for index, call in enumerate(calls, 1)]
    return marked, marks + len(calls)


def _marked_call(call: dict[str, Any], mark: str) -> dict[str, Any]:
    return {**call, "function": {**call["function"], "arguments": json.dumps({mark: mark})}}


def _tail(text: str, marks: int) -> str | None:
    """What follows the last mark; None if there are less than so many different ones."""
    found = list(_MARKS.finditer(text))
    return text[found[-1].end() :] if len({mark.group() for mark in found}) >= max(marks, 1) else None


def _has_text(messages: Sequence[Message]) -> bool:
    return bool(messages and messages[0]["content"])


def _head(history: tuple[Shape, ...]) -> int:
    """How many messages a conversation begins with before the first response: system messages and one more."""
    roles = [message["role"] for message in messages_of(history[:LONGEST_TURN])]
    first = next((index for index, role in enumerate(roles) if role not in ("system", "developer")), 0)
    return first + 1


@lru_cache(MOST_SEAMS)
def _short(history: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """The beginning of a conversation, and its last response with what came after it."""
    head = _head(history)
    last = next((index for index in range(len(history) - 1, -1, -1) if _is_response(history[index])), 0)
    return history[:head] + history[max(last, head) :]


def _longer(history: tuple[Shape, ...]) -> list[tuple[Shape, ...]]:
    """A history, and one in which all after its beginning comes twice."""
    rest = history[_head(history) :]
    return [history, history + rest] if rest else [history]


def _is_response(shape: Shape) -> bool:
    return json.loads(shape)["role"] == "assistant"
