"""Text-level matching over a toy template whose tokenizer writes one text in several ways."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_context import work

from ajet_merge import Call, MergeError, merge
from ajet_merge.messages import Context
from ajet_merge.text import Beginnings, TextMatch, match_texts

ROLES = {"system": 1, "user": 2, "assistant": 3, "tool": 4}
END, NEWLINE, THINK = 9, 8, 30
LETTERS = {"a": 10, "b": 11, "c": 12}
PAIRS = {"ab": 20, "bc": 21, "ca": 22}


def encode(text: str) -> list[int]:
    """As the template does it: pairs before letters."""
    ids: list[int] = []
    while text:
        size = 2 if text[:2] in PAIRS else 1
        ids.append((PAIRS | LETTERS)[text[:size]])
        text = text[size:]
    return ids


def render(messages: list[dict[str, Any]]) -> tuple[list[int], list[int]]:
    """Prompt ids, and the end of each message among them. Reasoning is left out."""
    ids: list[int] = []
    ends: list[int] = []
    for message in messages:
        ids += [ROLES[message["role"]], *encode(message["content"]), END, NEWLINE]
        ends.append(len(ids))
    return [*ids, ROLES["assistant"]], ends


def letters(text: str) -> list[int]:
    return [LETTERS[letter] for letter in text]


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def sampled(messages: list[dict[str, Any]], completion: list[int], response: Any, **more: Any) -> tuple[Call, Context]:
    """A call whose prompt the template wrote."""
    prompt, ends = render(messages)
    call = Call(prompt, completion, np.arange(-len(completion), 0), **more)
    return call, Context(tuple(messages), response, message_ends=ends)  # type: ignore[arg-type]


def match(*pairs: tuple[Call, Context | None]) -> TextMatch:
    return match_texts([call for call, _ in pairs], [context for _, context in pairs], end_ids=[END])


def two_turns(completion: list[int], text: str) -> TextMatch:
    history = [user("a"), said(text), user("b")]
    return match(sampled(history[:1], completion, said(text)), sampled(history, [10, END], said("a")))


def test_drifted_tokens_are_put_back_and_reported() -> None:
    found = two_turns([10, 11, 12, END], "abc")
    assert found.calls[1].prompt_ids.tolist() == [2, 10, 9, 8, 3, 10, 11, 12, 9, 8, 2, 11, 9, 8, 3]
    assert not found.calls[1].context_exact
    (drift,) = found.drifts
    assert (drift.call, drift.earlier, drift.position) == (1, 0, 5)
    assert drift.replaced.tolist() == [20]
    assert drift.inserted.tolist() == [10, 11]
    assert [(u.call, u.reason) for u in found.unmatched] == [(0, "extends_no_call")]
    assert len(merge(found.calls).timelines()) == 1


def test_a_completion_without_its_end_gets_the_one_that_the_template_wrote() -> None:
    found = two_turns([10, 11, 12], "abc")
    assert found.calls[1].prompt_ids.tolist() == [2, 10, 9, 8, 3, 10, 11, 12, 9, 8, 2, 11, 9, 8, 3]
    assert found.drifts[0].replaced.tolist() == [20]


def test_reasoning_that_the_template_left_out_is_put_back() -> None:
    found = two_turns([THINK, 10, THINK, 20, END], "ab")
    assert found.calls[1].prompt_ids.tolist() == [2, 10, 9, 8, 3, 30, 10, 30, 20, 9, 8, 2, 11, 9, 8, 3]
    assert found.drifts[0].replaced.tolist() == []
    assert found.drifts[0].inserted.tolist() == [30, 10, 30]


def test_another_end_of_turn_than_the_template_writes_stays() -> None:
    history = [user("a"), said("ab"), user("b")]
    pairs = [sampled(history[:1], [10, 11, 7], said("ab")), sampled(history, [10], None)]
    found = match_texts([c for c, _ in pairs], [c for _, c in pairs], end_ids={END, 7})
    assert found.calls[1].prompt_ids.tolist() == [2, 10, 9, 8, 3, 10, 11, 7, 8, 2, 11, 9, 8, 3]


def test_a_turn_that_was_written_in_several_parts_is_over_after_the_last() -> None:
    """As where an answer has channels, each with an end of its own."""
    first = Call([2, 10, 3], [THINK, END, 3, 10, 11, END], [-1] * 6)
    second = Call([2, 10, 3, THINK, END, 3, 20, END, NEWLINE, 2, 11, 3], [12], [-1])
    contexts = [
        Context((user("a"),), said("ab")),
        Context((user("a"), said("ab"), user("b")), message_ends=[2, 9, 11]),  # type: ignore[arg-type]
    ]
    found = match_texts([first, second], contexts, end_ids=[END])
    assert found.calls[1].prompt_ids.tolist() == [2, 10, 3, THINK, END, 3, 10, 11, END, NEWLINE, 2, 11, 3]


@pytest.mark.parametrize("ended", [True, False])
def test_where_the_template_writes_no_end_of_turn_the_rest_follows_the_message(ended: bool) -> None:
    first = Call([2, 10, 3], [10, 11, END][: 2 + ended], [-1, -1, -1][: 2 + ended])
    second = Call([2, 10, 3, 20, 2, 11, 3], [12], [-1])
    contexts = [
        Context((user("a"),), said("ab"), message_ends=[2]),  # type: ignore[arg-type]
        Context((user("a"), said("ab"), user("b")), said("c"), message_ends=[2, 4, 6]),  # type: ignore[arg-type]
    ]
    found = match_texts([first, second], contexts, end_ids=[END])
    assert found.calls[1].prompt_ids.tolist() == [2, 10, 3, 10, 11, *[END] * ended, 2, 11, 3]


def test_an_end_of_turn_outside_the_message_is_not_guessed_at() -> None:
    history = [user("a"), said("ab"), user("b")]
    call, context = sampled(history, [10], None)
    outside = Context(context.messages, message_ends=context.message_ends - 2)  # type: ignore[operator]
    found = match(sampled(history[:1], [10, 11, END], said("ab")), (call, outside))
    assert [(u.call, u.reason) for u in found.unmatched] == [(0, "extends_no_call"), (1, "unclear_end_of_turn")]
    assert found.calls[1] is call


def test_calls_that_nothing_is_known_of_are_left_alone_and_listed() -> None:
    history = [user("a"), said("ab"), user("b")]
    first = sampled(history[:1], [10, 11, END], said("ab"))
    call, context = sampled(history, [10], None)
    found = match(first, (call, None), (call, Context(context.messages)), (call, context))
    reasons = [(1, "no_context"), (2, "no_message_ends")]
    assert [(u.call, u.reason) for u in found.unmatched] == [(0, "extends_no_call"), *reasons]
    assert found.calls[1] is found.calls[2] is call
    assert [drift.call for drift in found.drifts] == [3]


def test_a_prompt_that_begins_with_any_call_of_the_same_messages_is_exact() -> None:
    history = [user("a"), said("ab"), user("b")]
    first = [sampled(history[:1], completion, said("ab")) for completion in ([20, END], [10, 11, END])]
    second = sampled(history, [10], None)
    found = match(*first, second)
    assert found.calls[2] is second[0]
    assert found.drifts == ()


@pytest.mark.parametrize("other", [{"attempt_id": "b"}, {"compat_key": "lora"}])
def test_attempts_and_compat_keys_do_not_mix(other: dict[str, Any]) -> None:
    history = [user("a"), said("ab"), user("b")]
    found = match(sampled(history[:1], [10, 11, END], said("ab"), **other), sampled(history, [10], None))
    assert found.drifts == ()


def test_later_calls_follow_the_tokens_put_in() -> None:
    """The third prompt repeats the second one as it was; the second is another now, so the third follows."""
    history = [user("a"), said("ab"), user("b"), said("c"), user("a")]
    first = sampled(history[:1], [10, 11, END], said("ab"))
    second, third = sampled(history[:3], [12, END], said("c")), sampled(history, [10], None)
    found = match(first, second, third)
    assert [(drift.call, drift.earlier) for drift in found.drifts] == [(1, 0), (2, 1)]
    assert merge(found.calls).num_tokens == len(found.calls[2])


@pytest.mark.parametrize(
    ("end_ids", "named"),
    [
        ([], "end_ids is empty"),
        ([-1], "end_ids holds -1"),
        ([1.5], "end_ids holds 1.5"),
        ([2**31], "end_ids holds"),
        (-1, "end_ids holds -1"),
        ([True], "end_ids holds True"),
        (np.array([[2, 3]]), r"end_ids holds \[2, 3\]"),
        ("2", "end_ids holds '2'"),
        (None, "end_ids = None: must be a token id or token ids"),
        (1.5, "end_ids = 1.5"),
        (np.array(2.0), r"end_ids = 2.0: must be"),
    ],
)
def test_end_ids_must_be_token_ids(end_ids: Any, named: str) -> None:
    with pytest.raises(MergeError, match=named):
        match_texts([], [], end_ids=end_ids)


@pytest.mark.parametrize("end_ids", [END, np.int64(END), np.array([END, 7]), {END}, (END,), np.array(END)])
def test_end_ids_may_be_one_or_any_number_of_them(end_ids: Any) -> None:
    history = [user("a"), said("abc"), user("b")]
    pairs = [sampled(history[:1], [10, 11, 12, END], said("abc")), sampled(history, [10, END], said("a"))]
    found = match_texts([call for call, _ in pairs], [context for _, context in pairs], end_ids=end_ids)
    assert len(found.drifts) == 1


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5), max_size=8), st.lists(st.integers(0, 1)))
def test_beginnings_are_found_whatever_their_lengths(beginnings: list[list[int]], ids: list[int]) -> None:
    known = Beginnings()
    for beginning in beginnings:
        known.add(np.array(beginning, np.int32))
    assert known.of(np.array(ids, np.int32)) == any(ids[: len(beginning)] == beginning for beginning in beginnings)


def test_the_cost_of_a_call_does_not_grow_with_the_calls_of_the_same_messages() -> None:
    def samples(number: int) -> TextMatch:
        history = [user("a"), said("ab"), user("b")]
        first = [sampled(history[:1], [THINK, 40 + at, THINK, 20, END], said("ab")) for at in range(number)]
        return match(*first, *[sampled(history, [10, END], said("a"))] * number)

    assert len(samples(40).drifts) == 40
    assert work(lambda: samples(80)) < 2.2 * work(lambda: samples(40))


def test_arguments_that_do_not_fit_are_refused() -> None:
    call, context = sampled([user("a")], [10], None, call_id="c1")
    long = Context(context.messages, message_ends=[99])  # type: ignore[arg-type]
    bad = Context(({"role": "assistant", "tool_calls": "x"},))
    for calls, contexts, named in [
        ([call], [], "contexts holds 0 items for 1 calls"),
        ([3], [None], r"calls\[0\] is a int"),
        ([call], [{}], r"contexts\[0\] is a dict"),
        ([call], [long], r"call 'c1': message_ends\[0\] = 99: must be at most .* 5"),
        ([call], [bad], r"call 'c1': messages\[0\]\.tool_calls = 'x'"),
    ]:
        with pytest.raises(MergeError, match=named):
            match_texts(calls, contexts, end_ids=[END])  # type: ignore[arg-type]


@dataclass
class Conversation:
    """What a toy model and template make of the turns of a few agents that speak one after another."""

    calls: list[Call]
    contexts: list[Context | None]
    exact: list[list[int]]
    """The prompt of each call if every sampled token had been kept."""


TEXTS = st.text(alphabet="abc", max_size=5)


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    made = Conversation([], [], [])
    agents: list[tuple[list[dict[str, Any]], list[int]]] = [
        ([{"role": "system", "content": text}], []) for text in "ab"
    ]
    for turn in range(draw(st.integers(1, 7))):
        messages, kept = draw(st.sampled_from(agents))
        new = [user(draw(TEXTS))] if kept else [*messages, user(draw(TEXTS))]
        messages += new[-1:]
        text, thought = draw(TEXTS), draw(st.sampled_from([[], [], [THINK, 10, THINK]]))
        ended = draw(st.integers(0, 3)) > 0
        completion = [*thought, *(encode(text) if draw(st.booleans()) else letters(text)), *[END] * ended]
        size = len(completion)
        prompt, ends = render(messages)
        kept += render(new)[0]
        call = Call(
            prompt,
            completion,
            logprobs=draw(st.lists(st.floats(-4, 0, width=32), min_size=size, max_size=size)),
            mask=draw(st.lists(st.booleans(), min_size=size, max_size=size)),
            advantage=0.5,
            call_id=f"c{turn}",
            episode_id="e",
        )
        response = said(text, reasoning_content="a") if thought else said(text)
        made.calls.append(call)
        made.contexts.append(Context(tuple(messages), response, message_ends=ends))  # type: ignore[arg-type]
        made.exact.append(list(kept))
        messages.append(said(text))
        kept += [*completion, *[END] * (not ended), NEWLINE]
    return made


@given(conversations())
def test_prompts_become_what_they_are_when_every_sampled_token_is_kept(made: Conversation) -> None:
    found = match_texts(made.calls, made.contexts, end_ids=[END])
    assert [call.prompt_ids.tolist() for call in found.calls] == made.exact
    assert merge(found.calls).num_tokens <= merge(made.calls).num_tokens
    assert {u.reason for u in found.unmatched} <= {"extends_no_call"}
    assert len(found.unmatched) <= 2


@given(conversations())
def test_only_prompts_change_and_each_change_is_reported(made: Conversation) -> None:
    before = [call.prompt_ids.tolist() for call in made.calls]
    found = match_texts(made.calls, made.contexts, end_ids=[END])
    assert [call.prompt_ids.tolist() for call in made.calls] == before
    drifts = {drift.call: drift for drift in found.drifts}
    for index, (old, new) in enumerate(zip(made.calls, found.calls, strict=True)):
        assert old.context_exact
        assert new.context_exact == (new.prompt_ids.tolist() == old.prompt_ids.tolist()) == (index not in drifts)
        for name in ("completion_ids", "logprobs", "mask", "advantage", "weight"):
            assert getattr(new, name).tobytes() == getattr(old, name).tobytes()
        assert (new.call_id, new.episode_id) == (old.call_id, old.episode_id)
        if index not in drifts:
            assert new is old
            continue
        drift, ids = drifts[index], old.prompt_ids.tolist()
        after = ids[drift.position + len(drift.replaced) :]
        assert ids[drift.position :] == [*drift.replaced.tolist(), *after]
        assert [*ids[: drift.position], *drift.inserted.tolist(), *after] == new.prompt_ids.tolist()
        assert drift.replaced[:1].tolist() != drift.inserted[:1].tolist()
        assert drift.replaced[-1:].tolist() != drift.inserted[-1:].tolist()


@given(conversations())
def test_matching_again_changes_nothing(made: Conversation) -> None:
    once = match_texts(made.calls, made.contexts, end_ids=[END])
    bare = [context and Context(context.messages, context.response) for context in made.contexts]
    again = match_texts(once.calls, bare, end_ids=[END])
    assert again.calls == once.calls
    assert again.drifts == ()
