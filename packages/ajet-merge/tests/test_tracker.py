"""`Tracker` with contexts: which call a request goes on from."""

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from ajet_merge import Call, MergeError, Tracker, merge
from ajet_merge.messages import Context, plain_message


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def asks(number: str, arguments: str = "{}") -> dict[str, Any]:
    return said("", tool_calls=[{"id": number, "type": "function", "function": {"name": "f", "arguments": arguments}}])


def arguments(number: Any) -> dict[str, Any]:
    return {"id": "i", "index": 0, "function": {"name": "f", "arguments": {"n": [number]}}}


def call(*completion: int, prompt: tuple[int, ...] = (1, 2), **more: Any) -> Call:
    return Call(list(prompt), list(completion), [-1.0] * len(completion), **more)


def test_a_request_extends_the_call_before_it() -> None:
    tracker = Tracker()
    assert tracker.extends([user("a")]) is None
    assert tracker.add(call(3, 4), Context((user("a"),), said("x"))) == 0
    extension = tracker.extends([user("a"), said("x"), user("b")])
    assert extension
    assert (extension.call, extension.messages, extension.response_included) == (0, 2, True)
    assert extension.ids.tolist() == [1, 2, 3, 4]
    assert extension.ids.dtype == np.int32


def test_the_longest_call_counts_whatever_was_added_last() -> None:
    tracker = Tracker()
    first, second = (user("a"),), (user("a"), said("x"), user("b"))
    tracker.add(call(7, prompt=(1, 2, 3)), Context(second, said("y")))
    tracker.add(call(3), Context(first, said("x")))
    extension = tracker.extends([*second, said("y"), user("c")])
    assert extension
    assert (extension.call, extension.messages) == (0, 4)
    extension = tracker.extends([*second, said("z"), user("c")])
    assert extension
    assert (extension.call, extension.messages) == (1, 2)


def test_a_request_without_the_response_extends_nothing() -> None:
    tracker = Tracker()
    tracker.add(call(3), Context((user("a"),), said("x")))
    tracker.add(call(4), Context((user("b"),)))
    tracker.add(call(5))
    assert tracker.extends([user("a"), user("b")]) is None
    assert tracker.extends([user("b"), said("x")]) is None


def test_the_same_request_again_gets_its_prompt() -> None:
    tracker = Tracker()
    tracker.add(call(3), Context((user("a"),), said("x")))
    tracker.add(call(9, prompt=(1, 2, 3, 5)), Context((user("a"), said("x"), user("b")), said("y")))
    extension = tracker.extends([user("a"), said("x"), user("b")])
    assert extension
    assert (extension.call, extension.messages, extension.response_included) == (1, 3, False)
    assert extension.ids.tolist() == [1, 2, 3, 5]


def test_an_edited_history_extends_what_comes_before_the_edit() -> None:
    tracker = Tracker()
    tracker.add(call(3), Context((user("a"),), said("x")))
    tracker.add(call(4), Context((user("a"), said("x"), user("b")), said("y")))
    extension = tracker.extends([user("a"), said("x"), user("edited"), said("y"), user("c")])
    assert extension
    assert (extension.call, extension.messages) == (0, 2)
    assert tracker.extends([user("edited"), said("x"), user("b")]) is None


@pytest.mark.parametrize("other", [{"attempt_id": "b"}, {"compat_key": "lora"}, {"tools": [{"name": "f"}]}])
def test_attempts_tools_and_compat_keys_do_not_mix(other: dict[str, Any]) -> None:
    tracker = Tracker()
    tracker.add(call(3), Context((user("a"),), said("x")))
    messages = [user("a"), said("x"), user("b")]
    assert tracker.extends(messages)
    assert tracker.extends(messages, **other) is None
    names = {name: value for name, value in other.items() if name != "tools"}
    tracker.add(call(4, **names), Context((user("a"),), said("x"), tuple(other.get("tools", ()))))
    extension = tracker.extends(messages, **other)
    assert extension
    assert extension.call == 1


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("right", "wrong", "sent"),
    [
        (asks("i"), asks("i", "{ }"), asks("i")),  # equal in every field
        (said("x", reasoning="r"), said("x"), said("x", reasoning="r")),
        (asks("i"), asks("j"), asks("i") | {"reasoning": "r"}),  # equal in ids
        (said("x", reasoning="r"), said("x", reasoning="s"), said("x", reasoning="r", annotations=[])),  # in reasoning
        (asks("i"), asks("j") | {"reasoning": "r"}, asks("i") | {"reasoning": "r"}),  # ids before reasoning
    ],
)
def test_of_equal_texts_the_response_that_is_sent_again_counts(right: Any, wrong: Any, sent: Any, turned: bool) -> None:
    tracker = Tracker()
    for response in (wrong, right) if turned else (right, wrong):
        tracker.add(call(3), Context((user("a"),), response))
    extension = tracker.extends([user("a"), sent, user("b")])
    assert extension
    assert extension.call == int(turned)


def test_of_calls_that_nothing_tells_apart_the_latest_counts() -> None:
    tracker = Tracker()
    for token in (3, 4):
        tracker.add(call(token), Context((user("a"),), said("x")))
    extension = tracker.extends([user("a"), said("x"), user("b")])
    assert extension
    assert (extension.call, extension.ids.tolist()) == (1, [1, 2, 4])


def test_of_equal_responses_the_history_decides() -> None:
    tracker = Tracker()
    for reasoning in "rs":
        tracker.add(call(3), Context((user("a"),), said("x", reasoning=reasoning)))
    for reasoning in "rs":
        tracker.add(call(4), Context((user("a"), said("x", reasoning=reasoning), user("b")), said("y")))
    history = [user("a"), said("x", reasoning="r"), user("b")]
    for messages, expected in ([*history, said("y"), user("c")], 2), (history, 2):
        extension = tracker.extends(messages)
        assert extension
        assert extension.call == expected


def test_sub_agents_that_speak_in_turns_keep_their_own_history() -> None:
    tracker = Tracker()
    histories = {name: [user(f"you are {name}")] for name in "abc"}
    for turn in range(12):
        for number, (name, history) in enumerate(histories.items()):
            history.append(user(f"go {turn}"))
            extension = tracker.extends(copy.deepcopy(history))
            assert (extension and extension.call) == (3 * (turn - 1) + number if turn else None)
            tracker.add(call(turn), Context(tuple(copy.deepcopy(history)), said(name)))
            history.append(said(name))


def test_what_callers_do_to_their_messages_later_changes_nothing() -> None:
    tracker = Tracker()
    request, response = [user("a")], asks("i")
    sent = copy.deepcopy([*request, response, user("b")])
    tracker.add(call(3), Context(tuple(request), response))
    request[0]["content"] = "edited"
    response["tool_calls"][0]["function"]["name"] = "g"
    extension = tracker.extends(sent)
    assert extension
    assert extension.call == 0
    assert tracker.extends([*request, response]) is None


def test_what_callers_do_to_a_response_later_does_not_change_the_choice() -> None:
    tracker = Tracker()
    responses = [asks("i"), asks("j")]
    for response in responses:
        tracker.add(call(3), Context((user("a"),), response))
    for response, number in zip(responses, "ji", strict=True):
        response["tool_calls"][0]["id"] = number
    extension = tracker.extends([user("a"), asks("i"), user("b")])
    assert extension
    assert extension.call == 0


def test_numbers_are_not_taken_for_booleans() -> None:
    tracker = Tracker()
    tracker.add(call(3), Context((user("a") | {"x": 1},), said("x")))
    assert tracker.extends([user("a") | {"x": True}, said("x")]) is None
    assert tracker.extends([user("a") | {"x": 1}, said("x")])


@pytest.mark.parametrize("sent", [1.0, True, 0.0])
def test_numbers_are_told_apart_by_type_and_sign(sent: Any) -> None:
    number = -0.0 if sent == 0 else 1
    tracker = Tracker()
    tracker.add(call(3), Context((user("a"),), said("x", tool_calls=[arguments(number)])))
    assert tracker.extends([user("a"), said("x", tool_calls=[arguments(sent)])]) is None
    assert tracker.extends([user("a"), said("x", tool_calls=[arguments(number)])])


def test_thoughts_within_the_text_may_be_left_out() -> None:
    tracker = Tracker()
    for token, thought in (3, "r"), (4, "s"):
        tracker.add(call(token), Context((user("a"),), said(f"<think>{thought}</think>\n\nx")))
    for sent, expected in ("x", 1), ("<think>s</think>\n\nx", 1), ("<think>r</think>\n\nx", 0):
        extension = tracker.extends([user("a"), said(sent), user("b")])
        assert extension
        assert (extension.call, extension.messages) == (expected, 2)


def test_ends_of_messages_beyond_the_prompt_are_refused_and_nothing_is_added() -> None:
    tracker = Tracker()
    context = Context((user("a"),), said("x"), message_ends=[3])  # type: ignore[arg-type]
    with pytest.raises(MergeError, match=r"call 'c7': message_ends\[0\] = 3: must be at most .* 2"):
        tracker.add(call(3, call_id="c7"), context)
    assert len(tracker) == 0
    assert tracker.extends([user("a"), said("x")]) is None


def test_contexts_do_not_change_the_forest() -> None:
    calls = [call(3), call(4, prompt=(1, 2, 3))]
    contexts = [Context((user("a"),), said("x")), None]
    tracker = Tracker()
    assert tracker.add_all(calls, contexts) == [0, 3]
    assert tracker.forest().tokens.tolist() == merge(calls).tokens.tolist()
    assert tracker.extends([user("a"), said("x")])


def test_calls_of_one_addition_extend_each_other() -> None:
    tracker = Tracker()
    second = (user("a"), said("x", reasoning="r"), user("b"))
    contexts = [Context((user("a"),), said("x", reasoning=r)) for r in "rs"] + [Context(second, said("y"))] * 2
    tracker.add_all([call(3), call(4), call(5), call(6)], contexts)
    extension = tracker.extends([*second, said("y")])
    assert extension
    assert extension.call == 3


BAD = [user("a"), {"role": "assistant", "tool_calls": "x"}]


def test_a_malformed_message_is_refused_and_nothing_is_added() -> None:
    tracker = Tracker()
    for context, field in (
        (Context(tuple(BAD)), r"messages\[1\]\.tool_calls"),
        (Context((), BAD[1]), r"response\.tool_calls"),
    ):
        with pytest.raises(MergeError, match=rf"call 'c7': {field} = 'x': must be a list"):
            tracker.add_all([call(3), call(3, call_id="c7")], [Context((user("a"),), said("x")), context])
    assert len(tracker) == 0
    assert tracker.forest().num_tokens == 0
    assert tracker.extends([user("a"), said("x")]) is None


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("messages", "named"),
    [
        (BAD, r"messages\[1\]\.tool_calls = 'x': must be a list"),
        ([user("a"), said("x"), user("new"), "x"], r"messages\[3\] = 'x'"),
        ([user("a"), said("x"), user("new"), {}], r"messages\[3\]\.role = None"),
        ("x", "messages = 'x': must be a list"),
    ],
)
def test_a_malformed_request_is_refused(messages: Any, named: str, known: bool) -> None:
    tracker = Tracker()
    if known:
        tracker.add(call(3), Context((user("a"),), said("x")))
    with pytest.raises(MergeError, match=named):
        tracker.extends(messages)


def test_what_is_no_context_is_refused() -> None:
    tracker = Tracker()
    with pytest.raises(MergeError, match=r"contexts\[0\] is a dict"):
        tracker.add(call(3), {"messages": []})  # type: ignore[arg-type]
    with pytest.raises(MergeError, match="contexts holds 1 items for 2 calls"):
        tracker.add_all([call(3), call(4)], [None])
    with pytest.raises(MergeError, match=r"calls\[0\] is a list"):
        tracker.add([1])  # type: ignore[arg-type]
    with pytest.raises(MergeError, match=r"tools\[0\]\.x"):
        tracker.add(call(3), Context((), None, ({"x": object()},)))
    with pytest.raises(MergeError, match=r"tools = 'x'"):
        tracker.extends([], tools="x")  # type: ignore[arg-type]


def test_what_a_call_goes_on_from_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker, messages = Tracker(), (user("a"), said("x"), user("b"))
    tracker.add(call(3), Context(messages[:1], messages[1]))
    extension = tracker.extends(messages)
    assert extension
    looked_at: list[str] = []
    monkeypatch.setattr(
        "ajet_merge.context.plain_message",
        lambda message, name: looked_at.append(name) or plain_message(message, name),
    )
    tracker.add(call(4, prompt=(1, 2, 3, 9), call_id="c"), Context(messages[2:], said("y")), extension)
    assert looked_at == ["call 'c': messages[0]", "call 'c': response"]
    found = tracker.extends([*messages, said("y"), user("c")])
    assert found
    assert (found.call, found.messages, found.ids.tolist()) == (1, 4, [1, 2, 3, 9, 4])


def test_calls_that_run_at_once_go_on_from_what_each_was_given() -> None:
    tracker = Tracker()
    answers = [said("x", reasoning="1"), said("x", reasoning="2")]
    tracker.add_all([call(3), call(4)], [Context((user("a"),), answer) for answer in answers])
    given = [tracker.extends([user("a"), answer, user("b")]) for answer in answers]
    for extension in given:
        tracker.add(call(5), Context((user("b"),), said("y")), extension)
    for number, answer in enumerate(answers):
        found = tracker.extends([user("a"), answer, user("b"), said("y"), user("c")])
        assert found
        assert found.call == 2 + number


def test_what_another_tracker_gave_is_refused() -> None:
    tracker, other = Tracker(), Tracker()
    other.add(call(3), Context((user("a"),), said("x")))
    extension = other.extends([user("a"), said("x")])
    for context in (Context((), None), Context((user("b"),), said("y"), ({"name": "f"},))):
        with pytest.raises(MergeError, match=r"after.call = 0: is not what `extends` of this tracker gave"):
            tracker.add(call(4), context, extension)
    with pytest.raises(MergeError, match="tools = 1 tools: must be left out"):
        other.add(call(4), Context((), None, ({"name": "f"},)), extension)
    assert (len(tracker), len(other)) == (0, 1)
    assert other.extends([user("a"), said("x")]) is not None


def test_threads_add_and_ask_at_once() -> None:
    tracker = Tracker()

    def talk(name: int) -> list[int]:
        history, found = [user(f"agent {name}")], []
        for turn in range(30):
            extension = tracker.extends(history)
            found.append(int(extension.ids[-1]) if extension else -1)
            tracker.add(call(name, turn), Context(tuple(history), said(f"{turn}")))
            history += [said(f"{turn}"), user("go on")]
        return found

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(talk, range(4))) == [list(range(-1, 29))] * 4
    assert len(tracker) == 120
