"""`Tracker.extends` against an obvious version of it, over conversations that fork, repeat, and are edited."""

import copy
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from message_strategies import RESPONSES, requests, said, spoil, user

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
