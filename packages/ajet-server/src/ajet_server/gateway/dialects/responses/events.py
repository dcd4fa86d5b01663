"""An answer as server-sent events, while it is sampled.

    response.created, response.in_progress
    thinking and text, as they come         output_item.added, content_part.added; deltas; their done events
    after the answer is durable             what is still open is closed; function calls; response.completed

Calls come last: agents run a tool as soon as its call is done. A message that calls follow is closed just before them.
Any event carries the `token_ids` that were sampled since the one before it, if they were asked for.
"""

from collections.abc import AsyncIterator, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from ajet_core.errors import AjetError
from ajet_server.gateway.dialects import sse
from ajet_server.gateway.dialects.chat.answer import error_body
from ajet_server.gateway.dialects.responses.answer import (
    Item,
    close_call,
    close_message,
    close_reasoning,
    is_last_cut,
    logprob_entries,
    needs_message,
    open_call,
    open_message,
    open_reasoning,
    response,
    skeleton,
)
from ajet_server.gateway.dialects.responses.parse import Parsed
from ajet_server.gateway.request import Answer, Choice, Delta, Started, TokenLogprob, ToolCall
from ajet_server.gateway.request import Item as StreamItem

_Kind = Literal["reasoning", "message"]
_OPEN = {"reasoning": open_reasoning, "message": open_message}
_PART: dict[_Kind, dict[str, Any]] = {
    "reasoning": {"type": "reasoning_text", "text": ""},
    "message": {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
}


async def events(parsed: Parsed, items: AsyncIterator[StreamItem]) -> AsyncIterator[bytes]:
    """Yields the events of a stream as its items come, one at a time."""
    stream = _Stream(parsed, await sse.begun(items))
    for event in stream.begin():
        yield event
    async for item in items:
        if isinstance(item, Delta):
            for event in stream.grow(item):
                yield event
        elif isinstance(item, Answer):
            for event in stream.finish(item):
                yield event


def failure(error: AjetError) -> bytes:
    """Returns the event for an error after the stream began; it is the last one.

    It tells everything twice: flat, as the API's reference has it, and in `error`, as its servers send it. SDKs raise
    only for the latter. Its number is always 0, since how many events came before is not known here.
    """
    told = error_body(error.message, error.code, error.status, error.field)
    flat = {name: told["error"][name] for name in ("code", "message", "param")}
    return sse.event({"type": "error", "sequence_number": 0} | flat | told, "error")


@dataclass(slots=True)
class _Growing:
    """An item that grows."""

    kind: _Kind
    item: Item
    texts: list[str] = field(default_factory=list[str])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])


class _Stream:
    """The events of one answer, of whose items one at most is open."""

    def __init__(self, parsed: Parsed, started: Started) -> None:
        self._parsed = parsed
        self._started = started
        self._sent = 0
        self._done: list[Item] = []
        self._open: _Growing | None = None
        self._opened: dict[_Kind, int] = {"reasoning": 0, "message": 0}
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] = []

    def begin(self) -> Iterator[bytes]:
        """The response exists."""
        started = self._started
        body = skeleton(self._parsed, started.id, started.created, started.model, status="in_progress")
        yield self._event("response.created", response=body)
        yield self._event("response.in_progress", response=body)

    def grow(self, delta: Delta) -> Iterator[bytes]:
        """More thinking, then more text. Its calls wait for the end, and what is behind them for the next event."""
        if self._parsed.request.return_token_ids:
            self._tokens += delta.tokens
        self._logprobs += delta.logprobs
        if delta.reasoning:
            growing = yield from self._opening("reasoning")
            growing.texts.append(delta.reasoning)
            yield self._event("response.reasoning_text.delta", **self._part(growing), delta=delta.reasoning)
        if delta.text:
            yield from self._say(delta.text)

    def finish(self, answer: Answer) -> Iterator[bytes]:
        """Everything is on disk."""
        choice = answer.choices[0]
        yield from self._last_words(choice)
        yield from self._close(cut=is_last_cut(choice))
        for index, call in enumerate(choice.tool_calls):
            yield from self._call(index, call)
        body = response(self._parsed, answer, self._done)
        yield self._event(f"response.{body['status']}", response=body)

    def _last_words(self, choice: Choice) -> Iterator[bytes]:
        """A message that is missing, and the log-probabilities that no text came after."""
        speaks = self._open is not None and self._open.kind == "message"
        if (speaks and self._logprobs) or (not self._opened["message"] and needs_message(choice)):
            yield from self._say("")

    def _say(self, text: str) -> Iterator[bytes]:
        growing = yield from self._opening("message")
        growing.texts.append(text)
        growing.logprobs += self._logprobs
        entries, self._logprobs = logprob_entries(self._logprobs), []
        yield self._event("response.output_text.delta", **self._part(growing), delta=text, logprobs=entries)

    def _opening(self, kind: _Kind) -> Generator[bytes, None, _Growing]:
        """Closes an item of the other kind, and opens one of this kind unless it is open."""
        if self._open is not None and self._open.kind == kind:
            return self._open
        yield from self._close()
        item = _OPEN[kind](self._started.id, self._opened[kind])
        self._opened[kind] += 1
        self._open = growing = _Growing(kind, item)
        yield self._event("response.output_item.added", output_index=len(self._done), item=item)
        yield self._event("response.content_part.added", **self._part(growing), part=_PART[kind])
        return growing

    def _close(self, *, cut: bool = False) -> Iterator[bytes]:
        if self._open is None:
            return
        growing, text = self._open, "".join(self._open.texts)
        if growing.kind == "reasoning":
            item = close_reasoning(growing.item, text, sealed=self._parsed.sealed)
        else:
            item = close_message(growing.item, text, growing.logprobs)
        part = item["content"][0]
        told = {name: part[name] for name in ("text", "logprobs") if name in part}
        yield self._event(f"response.{part['type']}.done", **self._part(growing), **told)
        yield self._event("response.content_part.done", **self._part(growing), part=part)
        self._open = None
        yield self._item_done(item | {"status": "incomplete"} if cut else item)

    def _call(self, index: int, call: ToolCall) -> Iterator[bytes]:
        item = open_call(self._started.id, index, call)
        place = {"item_id": item["id"], "output_index": len(self._done)}
        yield self._event("response.output_item.added", output_index=len(self._done), item=item)
        yield self._event("response.function_call_arguments.delta", **place, delta=call.arguments)
        told = {"name": call.name, "arguments": call.arguments}
        yield self._event("response.function_call_arguments.done", **place, **told)
        yield self._item_done(close_call(item, call))

    def _item_done(self, item: Item) -> bytes:
        self._done.append(item)
        return self._event("response.output_item.done", output_index=len(self._done) - 1, item=item)

    def _part(self, growing: _Growing) -> dict[str, Any]:
        return {"item_id": growing.item["id"], "output_index": len(self._done), "content_index": 0}

    def _event(self, kind: str, /, **fields: Any) -> bytes:
        numbered = {"type": kind, "sequence_number": self._sent} | fields
        self._sent += 1
        if self._tokens:
            numbered["token_ids"], self._tokens = self._tokens, []
        return sse.event(numbered, kind)
