"""`Tracker.extends` against an obvious version of it, over conversations that fork, repeat, and are edited."""

import copy
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_merge import Call, Extension, MergeError, Tracker, context
from ajet_merge.messages import (
    Context,
    Message,
    canonical_message,
    canonical_tools,
    plain_message,
    reasoning,
)

Record = tuple[tuple[str, str, str], Context]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def ids(message: Message) -> list[Any]:
    return [call.get("id") for call in message.get("tool_calls") or ()]


class Reference:
    """Compares canonical lists of all calls."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.bases: dict[int, int | None] = {}
        """By call, the one that it goes on from, where it was added after what `extends` gave."""

    def extends(self, scope: tuple[str, str, str], messages: Sequence[Message]) -> tuple[int, int, bool] | None:
        """(call, messages covered, response included)."""
        wanted = list(map(canonical_message, messages))
        asked = [
            n
            for n, (s, c) in enumerate(self.records)
            if s == scope and list(map(canonical_message, c.messages)) == wanted
        ]
        if asked:
            return max(asked, key=lambda n: (self._likeness(self._base(n), messages), n)), len(messages), False
        answered = self._answered(scope, messages, len(self.records))
        return None if answered is None else (answered, len(self.records[answered][1].messages) + 1, True)

    def _answered(self, scope: tuple[str, str, str], messages: Sequence[Message], before: int) -> int | None:
        wanted = list(map(canonical_message, messages))
        found: list[tuple[int, Any, int]] = []
        for number, (own_scope, made) in enumerate(self.records[:before]):
            if own_scope == scope and made.response is not None:
                whole = list(map(canonical_message, (*made.messages, made.response)))
                if wanted[: len(whole)] == whole:
                    found.append((len(whole), self._likeness(number, messages), number))
        return max(found)[2] if found else None

    def _base(self, number: int) -> int | None:
        if number in self.bases:
            return self.bases[number]
        scope, made = self.records[number]
        return self._answered(scope, made.messages, number)

    def base_of(self, extension: Extension) -> int | None:
        return extension.call if extension.response_included else self._base(extension.call)

    def _likeness(self, number: int | None, messages: Sequence[Message]) -> list[tuple[bool, ...]]:
        if number is None:
            return []
        made = self.records[number][1]
        response, given_one = made.response, messages[len(made.messages)]
        assert response is not None
        like = (
            plain_message(response) == plain_message(given_one),
            ids(response) == ids(given_one),
            reasoning(response) == reasoning(given_one),
        )
        return [like, *self._likeness(self._base(number), messages)]


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


@given(st.data())
def test_extends_agrees_with_comparing_everything(data: st.DataObject) -> None:
    tracker, reference = Tracker(), Reference()
    conversations: list[list[Message]] = []
    for number in range(data.draw(st.integers(1, 12))):
        attempt, key = data.draw(st.sampled_from(["", "", "", "b"])), data.draw(st.sampled_from(["", "", "lora"]))
        tools = data.draw(st.sampled_from([[], [], [{"name": "f"}]]))
        messages = data.draw(requests(conversations))
        response = data.draw(st.none() | RESPONSES)
        scope = (attempt, key, canonical_tools(tools))
        before = copy.deepcopy(messages)

        extension = tracker.extends(messages, attempt_id=attempt, compat_key=key, tools=tools)
        expected = reference.extends(scope, messages)
        assert (extension and (extension.call, extension.messages, extension.response_included)) == expected
        if extension:
            whole = [extension.call, 1000] + ([2000, extension.call] if extension.response_included else [])
            assert extension.ids.tolist() == whole
        assert messages == before

        call = Call([number, 1000], [2000, number], [-1, -1], attempt_id=attempt, compat_key=key)
        if extension and data.draw(st.booleans()):
            reference.bases[number] = reference.base_of(extension)
            tracker.add(call, Context(tuple(messages[extension.messages :]), response), extension)
        else:
            tracker.add(call, Context(tuple(messages), response, tuple(tools)))
        reference.records.append((scope, copy.deepcopy(Context(tuple(before), copy.deepcopy(response), tuple(tools)))))
        conversations.append([*before, *([copy.deepcopy(response)] if response else [])])
        spoil(messages)
        if response:
            spoil([response])


@pytest.fixture
def canonical_forms(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """Messages whose canonical form was made."""
    made: list[Message] = []

    def counted(message: Message, name: str) -> str:
        made.append(message)
        return canonical_message(message, name)

    monkeypatch.setattr(context, "canonical_message", counted)
    return made


def calling(number: int) -> dict[str, Any]:
    return {"tool_calls": [{"id": "i", "index": 0, "function": {"name": "f", "arguments": {"n": number, "x": 0.5}}}]}


@pytest.mark.parametrize("numbers", [False, True])
def test_canonical_forms_are_made_of_new_messages_only(canonical_forms: list[Message], numbers: bool) -> None:
    tracker, messages = Tracker(), [user("system")]
    for turn in range(128):
        messages = copy.deepcopy([*messages, user(f"question {turn}")])
        extension = tracker.extends(messages)
        assert extension is None if turn == 0 else extension and extension.call == turn - 1
        assert len(canonical_forms) <= 2
        more = calling(turn) if numbers else {}
        response = said(f"answer {turn}", reasoning_content="hm", **more)
        tracker.add(Call([turn], [turn], [-1]), Context(tuple(messages), response))
        # The agent sends its own turns again without reasoning: that form is new too.
        assert len(canonical_forms) <= 2 + 3
        canonical_forms.clear()
        messages.append(said(f"answer {turn}", **more))


def work(function: Callable[[], object]) -> int:
    """How many functions are called, those of C included: a measure of cost that is always the same."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("numbers", [False, True])
def test_attempts_of_equal_messages_in_one_scope_cost_the_same_however_many(numbers: bool) -> None:
    tracker = Tracker()

    def attempt() -> None:
        messages = [user("system")]
        for turn in range(6):
            messages = [*messages, user(f"question {turn}")]
            tracker.extends(messages)
            response = said(f"answer {turn}", **(calling(turn) if numbers else {}))
            tracker.add(Call([turn], [turn], [-1]), Context(tuple(messages), response))
            messages.append(response)

    costs = [work(attempt) for _ in range(40)]
    assert costs[-1] <= costs[2] + 10


def test_a_search_that_ends_in_an_error_spoils_no_later_one() -> None:
    tracker = Tracker()
    spoken = [{"role": "user", "content": str(number)} for number in range(4)]
    answer = {"role": "assistant", "content": "yes"}
    nested: Any = "x"
    for _ in range(300):
        nested = [nested]
    for end in (1, 3, 4):
        tracker.add(Call([end], [7], [-1]), Context(tuple(spoken[:end]), answer))
    for end in (1, 3, 4, 3, 1):
        found = tracker.extends(spoken[:2])
        assert found is None
        with pytest.raises(MergeError):
            tracker.extends([*spoken[:end], {"role": "user", "content": nested}])
        found = tracker.extends([*spoken[:end], answer, spoken[0]])
        assert found is not None
        assert (found.ids.tolist(), found.messages) == ([end, 7], end + 1)
