"""Random conversations that fork, repeat, and are edited, as agents send them."""

import copy
from typing import Any

from hypothesis import strategies as st

from ajet_merge.messages import Message


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


RESPONSES = st.builds(
    lambda text, thought, number, asks: (
        said(text)
        | ({"reasoning_content": thought} if thought else {})
        | ({"tool_calls": [{"id": number, "function": {"name": "f", "arguments": '{"a": 1, "b": 2}'}}]} if asks else {})
    ),
    st.sampled_from(["x", "y"]),
    st.sampled_from(["", "hm", "ha"]),
    st.sampled_from(["i", "j"]),
    st.booleans(),
)
INPUTS = st.sampled_from(
    [
        user("a"),
        user("b"),
        {"role": "tool", "content": "1", "tool_call_id": "i"},
        user("a") | {"x": 1},
        user("a") | {"x": True},
    ]
)


@st.composite
def resent(draw: st.DrawFn, message: Message) -> dict[str, Any]:
    """A message as an agent may send it again: the same, or with other details that do not count."""
    again = copy.deepcopy(dict(message))
    change = draw(st.sampled_from(["same", "same", "no reasoning", "parts", "other id", "arguments"]))
    if change == "no reasoning":
        again.pop("reasoning_content", None)
    elif change == "parts":
        again["content"] = (
            [{"type": "text", "text": again["content"]}] if isinstance(again["content"], str) else again["content"]
        )
    elif change == "other id":
        again["tool_calls"] = [{**call, "id": "k"} for call in again.get("tool_calls", [])]
    elif change == "arguments":
        calls = again.get("tool_calls", [])
        again["tool_calls"] = [{**c, "function": {"name": "f", "arguments": '{"b":2,"a":1}'}} for c in calls]
    return again


@st.composite
def requests(draw: st.DrawFn, earlier: list[list[Message]]) -> list[dict[str, Any]]:
    """A list of messages that goes on from an earlier one, repeats it, edits it, or is new."""
    base = list(draw(st.sampled_from(earlier))) if earlier and draw(st.integers(0, 4)) else []
    if base and draw(st.integers(0, 5)) == 0:
        base.pop(draw(st.integers(0, len(base) - 1)))
    return [draw(resent(message)) for message in base] + draw(st.lists(INPUTS, max_size=2))


def spoil(messages: list[dict[str, Any]]) -> None:
    """What a caller may do to its lists after they were added."""
    for message in messages:
        for call in message.get("tool_calls", []):
            call["id"] = call["function"]["arguments"] = "spoiled"
        message["content"] = "spoiled"
    messages.clear()
