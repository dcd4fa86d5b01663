"""What messages may hold that an explanation is made with: reasoning in their text, odd characters, and mistakes."""

from typing import Any

import pytest
from explain_conversations import Words, made
from hypothesis import given
from hypothesis import strategies as st

from ajet_merge import Call, MergeError, merge
from ajet_merge.explain import Departure
from ajet_merge.messages import Context

SYSTEM = {"role": "system", "content": "You answer in one sentence, and say so where you do not know."}
ASKED = {"role": "user", "content": "Which of the two rivers is the longer one, and by how much?"}
AGAIN = {"role": "user", "content": "And which of them carries more water in the spring?"}
ANSWER = "The northern one, by a hundred miles or a little more than that."
THOUGHT = "There are two of them, and the northern one comes from much farther away."


def said(content: str, **further: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **further}


def explained(earlier: dict[str, Any], later: dict[str, Any]) -> Departure:
    """By messages alone: a response, and what the next request holds of it."""
    words = Words()
    asked = [SYSTEM, ASKED]
    first, second = made(words, asked, earlier), made(words, [*asked, later, AGAIN], said("The southern one."))
    (found,) = merge([first[0], second[0]]).explain(None, [first[1], second[1]]).departures
    return found


# reasoning in the text of a message


@pytest.mark.parametrize(
    "inline",
    [
        f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}",
        f"{THOUGHT}\n</think>\n\n{ANSWER}",
        f"[THINK]{THOUGHT}[/THINK]{ANSWER}",
    ],
)
@pytest.mark.parametrize("left", [ANSWER, f"<think>\n\n</think>\n\n{ANSWER}"])
def test_reasoning_that_is_gone_from_the_text(inline: str, left: str) -> None:
    found = explained(said(inline), said(left))
    assert (found.cause, found.evidence) == ("stripped_reasoning", "messages")
    assert found.detail == "message 2 (assistant) is the same without its reasoning"


def test_reasoning_that_is_gone_where_the_earlier_call_had_it_in_its_prompt() -> None:
    words = Words()
    inline = said(f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}")
    first = made(words, [SYSTEM, ASKED, inline, AGAIN], said("The southern one."))
    second = made(words, [SYSTEM, ASKED, said(ANSWER), AGAIN, said("The southern one."), ASKED], said("No."))
    (found,) = merge([first[0], second[0]]).explain(None, [first[1], second[1]]).departures
    assert found.cause == "stripped_reasoning"


def test_reasoning_that_is_gone_from_messages_alone_is_not_what_changed_the_tokens() -> None:
    """Its template leaves it out for both calls, and one token differs for another reason."""
    messages = [SYSTEM, ASKED, said(f"<think>{THOUGHT}</think>{ANSWER}"), AGAIN]
    stripped = [*messages[:2], said(ANSWER), AGAIN]
    ids = list(range(100))
    calls = [Call([*ids[:50], odd, *ids[50:]], [1], [-1]) for odd in (200, 201)]
    (found,) = merge(calls).explain(None, [Context(tuple(messages)), Context(tuple(stripped))]).departures
    assert found.cause == "rendered_differently"


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (f"<think>{THOUGHT}</think>{ANSWER}", "It is the southern one."),  # the answer differs too
        (f"<think>{THOUGHT}</think>{ANSWER}", f"<think>No idea.</think>{ANSWER}"),  # other reasoning
        (ANSWER, f"<think>{THOUGHT}</think>{ANSWER}"),  # reasoning is new
    ],
)
def test_what_else_is_done_to_reasoning_is_an_edit(earlier: str, later: str) -> None:
    assert explained(said(earlier), said(later)).cause == "context_edited"


def test_reasoning_that_moved_to_a_field_of_its_own_is_not_gone() -> None:
    inline = said(f"<think>{THOUGHT}</think>{ANSWER}")
    assert explained(inline, said(ANSWER, reasoning_content=THOUGHT)).cause == "rendered_differently"


def test_marks_of_reasoning_in_what_a_user_says_are_text() -> None:
    words = Words()
    asks = [{"role": "user", "content": f"{mark}{ASKED['content']}"} for mark in ("<think>hm</think>", "")]
    calls = [made(words, [SYSTEM, ask, said(ANSWER), AGAIN], said("No.")) for ask in asks]
    (found,) = merge([one for one, _ in calls]).explain(None, [context for _, context in calls]).departures
    assert found.cause not in ("stripped_reasoning", "rendered_differently")


# mistakes


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("tool_calls", [3], "tool_calls[0] = 3"),
        ("tool_calls", {"name": "run"}, "tool_calls = "),
        ("tool_calls", [{"function": "run"}], "tool_calls[0].function = 'run'"),
        ("tool_calls", [{"function": None}], "tool_calls[0].function = None"),
        ("content", 7, "content = 7"),
        ("content", [7], "content[0] = 7"),
        ("extra", {1, 2}, "extra = "),
    ],
    ids=str,
)
@pytest.mark.parametrize("place", ["messages[1]", "response"])
def test_malformed_messages_are_refused_by_name(field: str, value: object, named: str, place: str) -> None:
    """Also where both calls hold the same message, and where nothing would have looked at it."""
    bad = {"role": "assistant", "content": "a", field: value}
    wrong = Context((ASKED, bad, AGAIN)) if place == "messages[1]" else Context((ASKED,), bad)
    right = Context((ASKED, said("a"), AGAIN), said("b"))
    for calls in (
        [Call([1, 2, 3], [2], [-1]), Call([1, 3, 4], [3], [-1])],
        [Call([1], [], []), Call([1, 2], [3], [-1])],
    ):
        for contexts, at in (([wrong, wrong], 0), ([right, wrong], 1), ([None, wrong], 1)):
            with pytest.raises(MergeError) as refused:
                merge(calls).explain(None, contexts)
            assert str(refused.value).startswith(f"contexts[{at}].{place}.{named}")


def test_malformed_tools_are_refused_by_name() -> None:
    calls = [Call([1, 2, 3], [2], [-1]), Call([1, 3, 4], [3], [-1])]
    wrong = Context((ASKED,), None, ({"type": "function", "function": {1, 2}},))
    with pytest.raises(MergeError, match=r"^contexts\[1\]\.tools\[0\]\.function = "):
        merge(calls).explain(None, [Context((ASKED,)), wrong])


def test_calls_of_other_tools_than_functions_are_compared_as_they_are() -> None:
    """A custom tool's call has no function with arguments, whatever stands in that field."""
    custom = {"id": "1", "type": "custom", "custom": {"name": "run", "input": "ls"}, "function": "run"}
    ends = [3, 9]
    messages = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [custom]})
    calls = [Call([1, 2, 3, 4, 5, 6, 7, 8, 9], [1], [-1]), Call([1, 2, 3, 4, 5, 0, 7, 8, 9], [1], [-1])]
    contexts = [Context(messages, None, (), ends) for _ in calls]  # type: ignore[arg-type]
    (found,) = merge(calls).explain(None, contexts).departures
    assert found.cause == "rendered_differently"


# odd characters


ANY_TEXT = st.text(st.characters(), max_size=4)  # lone surrogates too


@given(st.text(st.characters(), min_size=1, max_size=4), ANY_TEXT, ANY_TEXT, st.booleans())
def test_reports_can_always_be_encoded(role: str, content: str, call_id: str, again: bool) -> None:
    words = Words()
    asked = [{"role": "user", "content": "a b c"}, {"role": role, "content": content}]
    other = [asked[0], {"role": role, "content": f"{content} d"}]
    tail = [AGAIN] if again else []
    calls = [made(words, [*given, *tail], said("x"), call_id=call_id) for given in (asked, other)]
    for tokenizer in (None, words):
        explanation = merge([one for one, _ in calls]).explain(tokenizer, [context for _, context in calls])
        for report in (str(explanation), explanation.to_html()):
            assert report.encode().decode() == report


@pytest.mark.parametrize("odd", ["\ud800", "\x1b[31m", "\u202e", "\n", "\r"])
@pytest.mark.parametrize("again", [False, True])
def test_odd_characters_in_a_role_are_shown_as_escapes(odd: str, again: bool) -> None:
    """One cannot be encoded as UTF-8, others would colour a terminal or break its lines."""
    words, role = Words(), f"assist{odd}"
    asked: list[dict[str, Any]] = [{"role": "user", "content": "a b c"}, {"role": role, "content": "d e f"}]
    other = [asked[0], {"role": role, "content": "d g f"}]
    calls = [made(words, [*given, *([AGAIN] if again else [])], said("x")) for given in (asked, other)]
    explanation = merge([one for one, _ in calls]).explain(words, [context for _, context in calls])
    escaped = repr(role)[1:-1]
    assert f"({escaped})" in explanation.departures[0].detail
    for report in (str(explanation), explanation.to_html()):
        assert report.encode()
        assert escaped in report
        assert odd == "\n" or odd not in report


def test_odd_characters_of_a_tokenizer_and_of_ids_can_be_encoded() -> None:
    class Halves:
        def decode(self, token_ids: list[int], /) -> str:
            return "".join("\ud800a\udfff"[token % 3] for token in token_ids)

    calls = [Call([1, 2, 3], [token], [-1], call_id="\ud800", attempt_id="\udfff") for token in (4, 5)]
    explanation = merge([*calls, Call([1, 0, 3], [4], [-1])]).explain(Halves())
    assert "U+D800" in explanation.to_html()
    assert str(explanation).encode()
    assert explanation.to_html().encode()
