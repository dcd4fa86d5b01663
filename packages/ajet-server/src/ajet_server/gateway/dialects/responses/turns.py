"""Items to messages: the items of one assistant turn are one message."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ajet_server.gateway.dialects.chat.messages import arguments_at
from ajet_server.gateway.dialects.responses.body import (
    PARAGRAPH,
    CallItem,
    Content,
    Item,
    MessageItem,
    OutputItem,
    ReasoningItem,
)
from ajet_server.gateway.dialects.responses.ids import turn_of
from ajet_server.gateway.request import Message


@dataclass(slots=True)
class _Turn:
    """An assistant turn that may still grow."""

    source: str | None = None
    content: str | None = None
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def takes(self, item: MessageItem | ReasoningItem | CallItem) -> bool:
        """Whether the item belongs to this turn.

        Our ids tell which answer an item is of. Where one of the two has no such id, the order tells: a turn thinks
        before it says or calls anything, has one message, and does not end before its last call.
        """
        source = turn_of(item.id)
        if source and self.source:
            return source == self.source
        if isinstance(item, ReasoningItem):
            return self.content is None and not self.calls
        return isinstance(item, CallItem) or self.content is None

    def add(self, item: MessageItem | ReasoningItem | CallItem, index: int) -> None:
        source = turn_of(item.id)
        self.source = self.source or source
        if isinstance(item, MessageItem):
            self.content = (self.content or "") + _text(item.content)
        elif isinstance(item, CallItem):
            self.calls.append(_call(item, index))
        else:
            # What one of our answers thought in two places is one thought; items of others are paragraphs.
            gap = "" if source or not self.reasoning else PARAGRAPH
            self.reasoning += gap + item.text()

    def message(self) -> Message:
        message: Message = {"role": "assistant", "content": self.content or ""}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = self.calls
        return message


def messages_of(items: Iterable[Item]) -> list[Message]:
    """Returns the messages, in normal form, that the items are. Thinking without a word is left out.

    Raises:
        RequestError: arguments of a call that are no JSON object.
    """
    messages: list[Message] = []
    turn: _Turn | None = None
    for index, item in enumerate(items):
        if isinstance(item, OutputItem) or (isinstance(item, MessageItem) and item.role != "assistant"):
            messages += [turn.message()] if turn else []
            messages.append(_said(item))
            turn = None
        elif not (isinstance(item, ReasoningItem) and not item.text()):
            if turn is None or not turn.takes(item):
                messages += [turn.message()] if turn else []
                turn = _Turn()
            turn.add(item, index)
    return messages + ([turn.message()] if turn else [])


def _call(item: CallItem, index: int) -> dict[str, Any]:
    arguments = arguments_at(item.arguments, f"input.{index}.arguments")
    return {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": arguments}}


def _said(item: MessageItem | OutputItem) -> Message:
    """A message of somebody else than the model."""
    if isinstance(item, MessageItem):
        return {"role": "system" if item.role == "developer" else item.role, "content": _text(item.content)}
    message: Message = {"role": "tool", "content": _text(item.output), "tool_call_id": item.call_id}
    return message | {"name": item.name} if item.name else message


def _text(content: Content) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
