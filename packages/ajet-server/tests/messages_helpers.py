"""Answers for the tests of the Messages dialect, and the streams that lead to them."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from hypothesis import strategies as st

from ajet_server.gateway.dialects.messages import Parsed, events
from ajet_server.gateway.dialects.sse import Item, Started
from ajet_server.gateway.request import Answer, ChatRequest, Choice, Conversation, Delta, ToolCall

CALL = ToolCall("call_a", "add", '{"x":  1}')


def parsed(return_token_ids: bool = False) -> Parsed:
    prompt = Conversation([{"role": "user", "content": "hello"}])
    return Parsed(ChatRequest("m", prompt, return_token_ids=return_token_ids), stream=True)


def choice(text: str = "Hi.", **fields: Any) -> Choice:
    given: dict[str, Any] = {
        "reasoning": "",
        "tool_calls": (),
        "malformed_tool_calls": 0,
        "finish_reason": "stop",
        "stop": None,
        "token_ids": [7, 8, 9],
        "logprobs": (),
        "reasoning_tokens": 0,
        "versions": ((0, 2),),
    }
    return Choice(index=0, call_id="call_1", text=text, **given | fields)


def answer_of(found: Choice) -> Answer:
    return Answer("call_1", 5, "m", (found,), 4, [1, 2, 3, 4], cached_tokens=3, weight_version=2)


def pieces(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def deltas_of(found: Choice, size: int = 2) -> list[Delta]:
    """A stream that adds up to it: thinking, text, calls; the last one has no more than tokens."""
    return [
        *(Delta(0, reasoning=piece, tokens=(1,)) for piece in pieces(found.reasoning, size)),
        *(Delta(0, text=piece) for piece in pieces(found.text, size)),
        Delta(0, tool_calls=found.tool_calls),
        Delta(0, tokens=(9,)),
    ]


def stream(found: Choice, deltas: Sequence[Delta], asked: Parsed | None = None) -> bytes:
    """All bytes of a stream."""
    answer = answer_of(found)
    started = Started(answer.id, answer.created, answer.model, answer.prompt_tokens, answer.prompt_ids)

    async def items() -> AsyncIterator[Item]:
        for item in (started, *deltas, answer):
            yield item

    async def read() -> bytes:
        return b"".join([event async for event in events(asked or parsed(), items())])

    return asyncio.run(read())


def decode(data: bytes) -> list[dict[str, Any]]:
    """The events' data; each is named by its type."""
    found: list[dict[str, Any]] = []
    for block in data.decode().removesuffix("\n\n").split("\n\n"):
        name, content = block.split("\n")
        found.append(json.loads(content.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


_texts = st.text(max_size=12)
_calls = st.builds(
    ToolCall,
    st.text("abc", min_size=1, max_size=3),
    st.just("add"),
    st.dictionaries(_texts, st.integers() | _texts, max_size=2).map(json.dumps),
)
choices = st.builds(
    choice,
    text=_texts,
    reasoning=_texts,
    tool_calls=st.lists(_calls, max_size=2).map(tuple),
    finish_reason=st.sampled_from(["stop", "length", "tool_calls"]),
    stop=st.none() | st.just("END"),
    reasoning_tokens=st.integers(0, 3),
)
