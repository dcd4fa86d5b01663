"""`Conversations`: the answers of `Tracker`, without ids."""

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from message_strategies import RESPONSES, requests, said, spoil, user

from ajet_merge import Call, Context, Continuation, Conversations, MergeError, Tracker
from ajet_merge.messages import Message

TOOL = {"name": "f"}
BAD = {"role": "assistant", "tool_calls": "x"}


@given(st.data())
def test_it_answers_as_a_tracker_does(data: st.DataObject) -> None:
    conversations, tracker = Conversations(), Tracker()
    histories: list[list[Message]] = []
    for number in range(data.draw(st.integers(1, 12))):
        names = {
            "attempt_id": data.draw(st.sampled_from(["", "", "b"])),
            "compat_key": data.draw(st.sampled_from(["", "", "k"])),
        }
        tools = data.draw(st.sampled_from([[], [], [TOOL]]))
        messages, response = data.draw(requests(histories)), data.draw(st.none() | RESPONSES)
        histories.append(copy.deepcopy([*messages, *([response] if response else [])]))

        found = conversations.extends(messages, tools=tools, **names)
        extension = tracker.extends(messages, tools=tools, **names)
        assert found == (extension and Continuation(extension.call, extension.messages, extension.response_included))

        call = Call([number], [number], [-1], **names)
        if found and data.draw(st.booleans()):
            context = Context(tuple(messages[found.messages :]), response)
            tracker.add(call, context, extension)
            assert conversations.add(context, found, **names) == number
        else:
            context = Context(tuple(messages), response, tuple(tools))
            tracker.add(call, context)
            assert conversations.add(context, **names) == number
        spoil([*messages, *([response] if response else [])])  # neither may have kept the caller's own
    assert len(conversations) == len(tracker)


def test_a_request_goes_on_from_the_call_before_it() -> None:
    conversations = Conversations()
    assert conversations.extends([user("a")]) is None
    assert conversations.add(Context((user("a"),), said("x"))) == 0
    found = conversations.extends([user("a"), said("x"), user("b")])
    assert found == Continuation(0, 2, response_included=True)
    assert conversations.add(Context((user("b"),), said("y")), found) == 1
    assert conversations.extends([user("a"), said("x"), user("b")]) == Continuation(1, 3, response_included=False)
    assert conversations.extends([user("a"), said("x"), user("b"), said("y")]) == Continuation(1, 4, True)
    assert len(conversations) == 2


@pytest.mark.parametrize("text", ["", "<b>", "<think>hm</think>x", "x</think>"])
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_any_text_is_found_again(text: str, role: str) -> None:
    conversations, message = Conversations(), {"role": role, "content": text}
    for response in said("y"), message:
        index = conversations.add(Context((message,), response))
        assert conversations.extends(copy.deepcopy([message, response])) == Continuation(index, 2, True)


@pytest.mark.parametrize("other", [{"attempt_id": "b"}, {"compat_key": "lora"}, {"tools": [TOOL]}])
def test_attempts_tools_and_compat_keys_do_not_mix(other: dict[str, Any]) -> None:
    conversations, messages = Conversations(), [user("a"), said("x"), user("b")]
    conversations.add(Context((user("a"),), said("x")))
    assert conversations.extends(messages)
    assert conversations.extends(messages, **other) is None
    names = {name: value for name, value in other.items() if name != "tools"}
    conversations.add(Context((user("a"),), said("x"), tuple(other.get("tools", ()))), **names)
    assert conversations.extends(messages, **other) == Continuation(1, 2, response_included=True)


@pytest.mark.parametrize(
    ("context", "named"),
    [
        (Context((user("a"), BAD)), r"^messages\[1\]\.tool_calls = 'x': must be a list"),
        (Context((), BAD), r"^response\.tool_calls = 'x': must be a list"),
        (Context((), None, ({"x": object()},)), r"^tools\[0\]\.x"),
        ({"messages": []}, "context is a dict; give an ajet_merge.Context"),
        (None, "context is a NoneType; give an ajet_merge.Context"),
    ],
)
def test_what_is_malformed_is_refused_and_not_added(context: Any, named: str) -> None:
    conversations = Conversations()
    with pytest.raises(MergeError, match=named):
        conversations.add(context)
    assert len(conversations) == 0
    assert conversations.extends([user("a")]) is None
    assert conversations.add(Context((user("a"),))) == 0


@pytest.mark.parametrize(
    ("messages", "tools", "named"),
    [
        ([user("a"), BAD], (), r"^messages\[1\]\.tool_calls = 'x': must be a list"),
        ("x", (), "^messages = 'x': must be a list"),
        ([], "x", "^tools = 'x'"),
    ],
)
def test_a_malformed_request_is_refused(messages: Any, tools: Any, named: str) -> None:
    with pytest.raises(MergeError, match=named):
        Conversations().extends(messages, tools=tools)


def test_what_other_conversations_gave_is_refused() -> None:
    conversations, other = Conversations(), Conversations()
    other.add(Context((user("a"),), said("x")))
    found = other.extends([user("a"), said("x")])
    with pytest.raises(MergeError, match=r"^after.call = 0: is not what `extends` of these conversations gave"):
        conversations.add(Context((user("b"),)), found)
    with pytest.raises(MergeError, match=r"^tools = 1 tools: must be left out"):
        other.add(Context((user("b"),), None, (TOOL,)), found)
    assert (len(conversations), len(other)) == (0, 1)


def test_threads_add_and_ask_at_once() -> None:
    conversations = Conversations()

    def talk(name: int) -> list[int]:
        history, added = [user(f"agent {name}")], []
        for turn in range(30):
            found = conversations.extends(history)
            assert (found.call if found else None) == (added[-1] if added else None)
            new = history[found.messages :] if found else history
            added.append(conversations.add(Context(tuple(new), said(f"{turn}")), found))
            history += [said(f"{turn}"), user("go on")]
        return added

    with ThreadPoolExecutor(4) as pool:
        indices = [index for added in pool.map(talk, range(4)) for index in added]
    assert sorted(indices) == list(range(120))
