"""One conversation is the same one, whether it comes through Messages or through Chat Completions."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_server.gateway.dialects import chat, messages
from ajet_server.gateway.request import Conversation

texts = st.text(max_size=8)
ids = st.text("abc", min_size=1, max_size=3)
inputs = st.dictionaries(
    texts, st.none() | st.booleans() | st.integers() | texts | st.lists(texts, max_size=2), max_size=2
)
names = st.sampled_from(["add", "sub"])
tools = st.lists(
    st.tuples(names, st.none() | texts, st.dictionaries(texts, texts, max_size=2)), unique_by=lambda tool: tool[0]
)


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


@st.composite
def contents(draw: st.DrawFn) -> tuple[Any, Any]:
    """The same text, as it comes in one dialect and in the other: whole or in parts."""
    parts = draw(st.lists(texts, min_size=1, max_size=3))
    in_parts = [_text(part) for part in parts]
    return draw(st.sampled_from([("".join(parts), in_parts), (in_parts, "".join(parts)), (in_parts, in_parts)]))


@st.composite
def turns(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A message of Messages, and the messages of Chat Completions that say the same."""
    kind = draw(st.sampled_from(["user", "results", "assistant", "system"]))
    if kind == "assistant":
        return draw(assistants())
    ours, theirs = draw(contents())
    if kind != "results":
        return {"role": kind, "content": ours}, [{"role": kind, "content": theirs}]
    results = draw(st.lists(st.tuples(ids, contents()), min_size=1, max_size=3))
    blocks = [{"type": "tool_result", "tool_use_id": call, "content": found[0]} for call, found in results]
    answers = [{"role": "tool", "tool_call_id": call, "content": found[1]} for call, found in results]
    if draw(st.booleans()):
        blocks += [_text(ours)] if isinstance(ours, str) else ours
        answers.append({"role": "user", "content": theirs})
    return {"role": "user", "content": blocks}, answers


@st.composite
def assistants(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    thinking, text = draw(texts), draw(texts)
    calls = draw(st.lists(st.tuples(ids, names, inputs), max_size=2))
    blocks: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": thinking, "signature": "s"},
        _text(text),
        *({"type": "tool_use", "id": call, "name": name, "input": value} for call, name, value in calls),
    ]
    tool_calls = [
        {"id": call, "type": "function", "function": {"name": name, "arguments": json.dumps(value, ensure_ascii=False)}}
        for call, name, value in calls
    ]
    message = {"role": "assistant", "content": text, "reasoning_content": thinking, "tool_calls": tool_calls}
    return {"role": "assistant", "content": blocks}, [message]


@settings(deadline=None)
@given(st.lists(turns(), max_size=5), texts, contents(), tools)
def test_equal_conversations(
    parts: list[tuple[dict[str, Any], list[dict[str, Any]]]], system: str, last: tuple[Any, Any], given_tools: list[Any]
) -> None:
    ours = {
        "model": "m",
        "max_tokens": 5,
        "system": system,
        "messages": [message for message, _ in parts] + [{"role": "user", "content": last[0]}],
        "tools": [
            {"name": name, "input_schema": schema, "description": description}
            for name, description, schema in given_tools
        ],
    }
    theirs = {
        "model": "m",
        "max_tokens": 5,
        "messages": ([{"role": "system", "content": system}] if system else [])
        + [message for _, same in parts for message in same]
        + [{"role": "user", "content": last[1]}],
        "tools": [
            {
                "type": "function",
                "function": {"name": name, "parameters": schema, "description": description},
            }
            for name, description, schema in given_tools
        ],
    }
    mine, other = messages.parse(ours, thinks=True).request, chat.parse(theirs).request
    assert isinstance(mine.prompt, Conversation)
    assert mine == other
