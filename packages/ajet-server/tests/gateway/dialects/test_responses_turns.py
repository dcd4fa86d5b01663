"""Items of the Responses dialect are the messages that Chat Completions has for the same conversation."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ajet_core.errors import RequestError
from ajet_server.gateway.dialects import chat, responses
from ajet_server.gateway.dialects.responses.ids import item_id, seal
from ajet_server.gateway.request import Conversation, Message

Items = list[dict[str, Any]]


def read(items: Items) -> list[Message]:
    prompt = responses.parse({"model": "m", "input": items}, lambda _: []).request.prompt
    assert isinstance(prompt, Conversation)
    return prompt.messages


def read_chat(messages: list[dict[str, Any]]) -> list[Message]:
    prompt = chat.parse({"model": "m", "messages": messages}).request.prompt
    assert isinstance(prompt, Conversation)
    return prompt.messages


text = st.text(max_size=8)
word = st.text(min_size=1, max_size=8)
said = st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "developer"]), "content": text})
calls = st.lists(st.tuples(word, st.dictionaries(text, st.integers(), max_size=2).map(json.dumps), text), max_size=3)
turns = st.fixed_dictionaries({"role": st.just("assistant"), "content": text, "reasoning": text, "calls": calls})
conversations = st.lists(said | turns, min_size=1, max_size=6)


def chat_of(turn: dict[str, Any], ids: list[str]) -> list[dict[str, Any]]:
    """The turn and its tools' outputs as Chat Completions has them."""
    if turn["role"] != "assistant":
        return [turn]
    calls = [
        {"id": name, "type": "function", "function": {"name": tool, "arguments": arguments}}
        for name, (tool, arguments, _) in zip(ids, turn["calls"], strict=True)
    ]
    message = {"role": "assistant", "content": turn["content"], "tool_calls": calls}
    message["reasoning_content"] = turn["reasoning"]
    outputs = zip(ids, turn["calls"], strict=True)
    return [message, *({"role": "tool", "tool_call_id": name, "content": call[2]} for name, call in outputs)]


def items_of(turn: dict[str, Any], ids: list[str], answer: str | None, how: str) -> Items:
    """The same as items, as an answer gave them out (`answer`), or without ids."""
    if turn["role"] != "assistant":
        part = {"type": "input_text", "text": turn["content"]}
        return [{"role": turn["role"], "content": [part] if how == "parts" else turn["content"]}]
    items: Items = []
    if turn["reasoning"]:
        thought = [{"type": "reasoning_text", "text": turn["reasoning"]}]
        sealed = {"summary": [], "encrypted_content": seal(turn["reasoning"])}
        plain = {"summary": [], "content": thought, "status": None}
        items.append({"type": "reasoning", "id": "rs", **(sealed if how == "sealed" else plain)})
    if turn["content"] or not turn["calls"]:
        part = {"type": "output_text", "text": turn["content"], "annotations": [], "logprobs": []}
        items.append({"type": "message", "id": "msg", "role": "assistant", "content": [part], "status": "completed"})
    for name, (tool, arguments, _) in zip(ids, turn["calls"], strict=True):
        items.append({"type": "function_call", "id": "fc", "call_id": name, "name": tool, "arguments": arguments})
    for index, item in enumerate(items):
        item["id"] = item_id(item["id"], answer, index) if answer else None
    outputs = zip(ids, turn["calls"], strict=True)
    return items + [{"type": "function_call_output", "call_id": name, "output": call[2]} for name, call in outputs]


def _reads_as_one(turn: dict[str, Any], after: dict[str, Any]) -> bool:
    """Without ids, calls right after a message are of the same turn."""
    both = turn["role"] == after["role"] == "assistant"
    return both and not turn["calls"] and bool(after["calls"]) and not (after["reasoning"] or after["content"])


@given(conversations, st.booleans(), st.sampled_from(["plain", "parts", "sealed"]))
def test_a_conversation_is_the_same_in_both_dialects(conversation: list[Any], with_ids: bool, how: str) -> None:
    assume(with_ids or not any(_reads_as_one(*pair) for pair in pairwise(conversation)))
    messages: list[dict[str, Any]] = []
    items: Items = []
    for number, turn in enumerate(conversation):
        ids = [f"c{number}_{index}" for index in range(len(turn.get("calls", ())))]
        messages += chat_of(turn, ids)
        items += items_of(turn, ids, f"call_{number:024x}" if with_ids else None, how)
    assert read(items) == read_chat(messages)


OURS, OTHER = "call_" + "a" * 24, "call_" + "b" * 24
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"x": 1}'}
NORMAL_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}


def message(content: str, item: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "id": item}


def thinking(content: str, item: str | None = None) -> dict[str, Any]:
    return {"type": "reasoning", "id": item, "content": [{"type": "reasoning_text", "text": content}]}


def test_the_items_of_one_answer_are_one_message_in_any_order() -> None:
    items = [
        message("a", item_id("msg", OURS, 0)),
        thinking("x", item_id("rs", OURS, 0)),
        CALL | {"id": item_id("fc", OURS, 0)},
        message("b", item_id("msg", OURS, 1)),
        thinking("y", item_id("rs", OURS, 1)),
    ]
    assert read(items) == [
        {"role": "assistant", "content": "ab", "reasoning_content": "xy", "tool_calls": [NORMAL_CALL]}
    ]


def test_the_items_of_two_answers_are_two_messages() -> None:
    items = [message("a", item_id("msg", OURS, 0)), CALL | {"id": item_id("fc", OTHER, 0)}]
    assert read(items) == [
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [NORMAL_CALL]},
    ]


def test_without_our_ids_the_order_tells() -> None:
    assert read([message("a", "msg_68"), thinking("x", "rs_68"), message("b"), CALL, message("c")]) == [
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "x", "tool_calls": [NORMAL_CALL]},
        {"role": "assistant", "content": "c"},
    ]
    assert read([thinking("x"), thinking("y"), message("a")]) == [
        {"role": "assistant", "content": "a", "reasoning_content": "x\n\ny"}
    ]


def test_thinking_without_a_word_is_left_out() -> None:
    empty = {"type": "reasoning", "id": "rs_68", "summary": [], "encrypted_content": None}
    assert read([empty, message("a")]) == [{"role": "assistant", "content": "a"}]


def test_a_summary_stands_in_for_thinking() -> None:
    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": part} for part in "xy"]}
    assert read([summary]) == [{"role": "assistant", "content": "", "reasoning_content": "x\n\ny"}]


def test_outputs_of_tools() -> None:
    parts = [{"type": "input_text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}}]
    output = {"type": "function_call_output", "call_id": "c", "output": parts, "name": "f", "status": "completed"}
    assert read([CALL, output]) == [
        {"role": "assistant", "content": "", "tool_calls": [NORMAL_CALL]},
        {"role": "tool", "content": "a", "tool_call_id": "c", "name": "f"},
    ]


@pytest.mark.parametrize(
    ("item", "field"),
    [
        ({"type": "item_reference", "id": "msg_1"}, "input.0"),
        ({"id": "msg_1"}, "input.0"),
        ({"type": "computer_call_output", "call_id": "c"}, "input.0"),
        ({"type": []}, "input.0.type"),
        ({"role": "tool", "content": ""}, "input.0.role"),
        ({"role": "user"}, "input.0.content"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "u"}]}, "input.0.content.0"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input.0.content.0.text"),
        ({"role": "user", "content": "\ud800"}, "input.0.content"),
        ({"role": "user", "content": "", "extra": 1}, "input.0.extra"),
        ({"role": "assistant", "content": "", "phase": "commentary"}, "input.0.phase"),
        (CALL | {"arguments": "[]"}, "input.0.arguments"),
        (CALL | {"arguments": "{"}, "input.0.arguments"),
        (CALL | {"call_id": ""}, "input.0.call_id"),
        (CALL | {"namespace": "n"}, "input.0.namespace"),
        (CALL | {"caller": {"type": "program", "caller_id": "p"}}, "input.0.caller.type"),
        ({"type": "function_call_output", "output": "a"}, "input.0.call_id"),
        ({"type": "reasoning", "encrypted_content": "gAAAA"}, "input.0.encrypted_content"),
        ({"type": "reasoning", "encrypted_content": seal("thought")[:-3]}, "input.0.encrypted_content"),
        ({"type": "reasoning", "summary": [{"type": "text", "text": ""}]}, "input.0.summary.0.type"),
    ],
)
def test_refusals_name_the_field(item: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        read([item])
    assert caught.value.field == field
    assert caught.value.message.startswith(f"{field}: ")
