"""An answer as server-sent events, while it is sampled.

    message_start, ping
    thinking and text, as they come        content_block_start, content_block_delta…, content_block_stop
    after the answer is durable            tool_use blocks; message_delta with stop reason and usage; message_stop

Calls come last so that the blocks are in the order of the whole answer, and no tool runs for a call that was lost.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

from ajet_core.errors import AjetError
from ajet_server.gateway.dialects.messages.answer import prompt_ids_of, stop_of, token_ids_of, usage_of
from ajet_server.gateway.dialects.messages.body import Parsed
from ajet_server.gateway.dialects.messages.conversation import signature_of
from ajet_server.gateway.dialects.messages.errors import error_body
from ajet_server.gateway.dialects.sse import begun, event
from ajet_server.gateway.request import Answer, Delta, Item, Started, ToolCall

_EMPTY = {"thinking": {"type": "thinking", "thinking": "", "signature": ""}, "text": {"type": "text", "text": ""}}


async def events(parsed: Parsed, items: AsyncIterator[Item]) -> AsyncIterator[bytes]:
    """Yields the events of one answer.

    How much of the prompt was cached, and with it all of the usage, is told at the end. With `return_token_ids`
    `message_start` has the prompt's ids in its message, `message_delta` all of the completion's.
    """
    yield _start(parsed, await begun(items))
    yield _event("ping")
    blocks = _Blocks()
    async for item in items:
        for data in _after(item, blocks, parsed):
            yield data


def failure(error: AjetError) -> bytes:
    """Returns the event that ends a stream which failed."""
    return _event("error", **error_body(error.message, error.code, error.status))


class _Blocks:
    """The blocks of a message, of which one at most is open."""

    def __init__(self) -> None:
        self._count = 0
        self._open: Literal["thinking", "text"] | None = None
        self._thinking: list[str] = []

    def grow(self, kind: Literal["thinking", "text"], more: str) -> Iterator[bytes]:
        """More of one kind; closes a block of the other."""
        if not more:
            return
        if self._open != kind:
            yield from self.close()
            self._open = kind
            yield self._event("content_block_start", content_block=_EMPTY[kind])
        if kind == "thinking":
            self._thinking.append(more)
        yield self._delta(f"{kind}_delta", **{kind: more})

    def close(self) -> Iterator[bytes]:
        """Closes the block that is open. A thinking block is signed then."""
        if self._open is None:
            return
        if self._open == "thinking":
            yield self._delta("signature_delta", signature=signature_of("".join(self._thinking)))
            self._thinking.clear()
        self._open = None
        yield self._stop()

    def calls(self, calls: tuple[ToolCall, ...]) -> Iterator[bytes]:
        """A block for each call, with its arguments in one piece."""
        for call in calls:
            block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            yield self._event("content_block_start", content_block=block)
            yield self._delta("input_json_delta", partial_json=call.arguments)
            yield self._stop()

    def _delta(self, kind: str, **fields: str) -> bytes:
        return self._event("content_block_delta", delta={"type": kind, **fields})

    def _stop(self) -> bytes:
        stop = self._event("content_block_stop")
        self._count += 1
        return stop

    def _event(self, kind: str, **fields: Any) -> bytes:
        return _event(kind, index=self._count, **fields)


def _start(parsed: Parsed, started: Started) -> bytes:
    message: dict[str, Any] = {
        "id": started.id,
        "type": "message",
        "role": "assistant",
        "model": started.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": started.prompt_tokens, "output_tokens": 0},
        **prompt_ids_of(parsed, started.prompt_ids),
    }
    return _event("message_start", message=message)


def _after(item: Item, blocks: _Blocks, parsed: Parsed) -> Iterator[bytes]:
    if isinstance(item, Delta):
        yield from blocks.grow("thinking", item.reasoning)
        yield from blocks.grow("text", item.text)
    elif isinstance(item, Answer):
        choice = item.choices[0]
        yield from blocks.close()
        yield from blocks.calls(choice.tool_calls)
        yield _event("message_delta", delta=stop_of(choice), usage=usage_of(item), **token_ids_of(parsed, choice))
        yield _event("message_stop")


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind} | fields, kind)
