"""Each cause, read from messages, from text and from token ids, and never more claimed than these tell."""

from collections.abc import Callable
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import pytest
from explain_conversations import Messages, Words, chatml, made

from ajet_merge import Call, merge
from ajet_merge.explain import Cause, Departure, Evidence
from ajet_merge.messages import Context

SYSTEM = {"role": "system", "content": "You are a careful agent. Work in small steps and run the tests after each one."}
TASK = {"role": "user", "content": "The test of the date parser fails on one machine only. Find out why and repair it."}
THOUGHT = {
    "role": "assistant",
    "reasoning_content": "It fails on one machine only, so line ends are the first thing to look at, then the locale.",
    "content": "The file is opened in binary mode, so each line keeps its carriage return. I strip it now.",
}
CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "run", "arguments": '{"command":"pytest -q"}'}}
    ],
}
RESULT = {
    "role": "tool",
    "content": "41 tests were collected and 40 passed, the one of the date parser failed as before.",
}
NEXT = {"role": "user", "content": "Good. Does the parser of times have the same fault? Look at it and add a test."}
ANSWER = {
    "role": "assistant",
    "content": "It has. I moved the stripping to one place that both of them use, and tested it.",
}
TOOLS = [{"type": "function", "function": {"name": "run", "description": "Runs a command and returns what it prints."}}]
MORE_TOOLS = [*TOOLS, {"type": "function", "function": {"name": "read", "description": "Returns what a file holds."}}]
SUMMARY = {"role": "user", "content": "Summary so far: a carriage return was the cause."}

Made = tuple[Call, Context]


class Case(NamedTuple):
    """Two calls, and the causes to be found in ids, in text, in messages, and in text and messages together."""

    earlier: Made
    later: Made
    ids: Cause
    text: Cause
    messages: Cause
    all: Cause


def without(message: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != key}


def changed(message: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    assert old in message["content"]
    return {**message, "content": message["content"].replace(old, new)}


def with_arguments(arguments: object) -> dict[str, Any]:
    return {
        **CALLED,
        "tool_calls": [{"id": "c2", "type": "function", "function": {"name": "run", "arguments": arguments}}],
    }


def retokenization(words: Words) -> Case:
    head, tail = ANSWER["content"].split("stripping")
    odd = [*words.encode(head[:-1]), *words.letters(" stripping"), *words.encode(f"{tail}<|im_end|>")]
    start: Messages = [SYSTEM, TASK]
    earlier, later = made(words, start, ANSWER, sampled=odd), made(words, [*start, ANSWER, NEXT], THOUGHT)
    return Case(earlier, later, "context_changed", "retokenization", "rendered_differently", "retokenization")


def white_space(words: Words) -> Case:
    spaced = changed(ANSWER, "use, and", "use,\n\nand")
    earlier, later = made(words, [SYSTEM, TASK], ANSWER), made(words, [SYSTEM, TASK, spaced, NEXT], THOUGHT)
    return Case(earlier, later, "context_changed", "white_space", "white_space", "white_space")


def tool_call_reserialized(words: Words) -> Case:
    again = with_arguments({"command": "pytest -q"})
    earlier, later = (
        made(words, [SYSTEM, TASK], CALLED, TOOLS),
        made(words, [SYSTEM, TASK, again, RESULT], ANSWER, TOOLS),
    )
    kind: Cause = "tool_call_reserialized"
    return Case(earlier, later, "context_inserted", kind, kind, kind)


def tool_call_with_keys_in_another_order(words: Words) -> Case:
    first, again = (
        with_arguments('{"a": 1, "command": "pytest -q"}'),
        with_arguments('{"command": "pytest -q", "a": 1}'),
    )
    earlier, later = (
        made(words, [SYSTEM, TASK], first, TOOLS),
        made(words, [SYSTEM, TASK, again, RESULT], ANSWER, TOOLS),
    )
    kind: Cause = "tool_call_reserialized"
    return Case(earlier, later, "context_changed", kind, kind, kind)


def stripped_reasoning(words: Words) -> Case:
    later = made(words, [SYSTEM, TASK, without(THOUGHT, "reasoning_content"), NEXT], ANSWER)
    kind: Cause = "stripped_reasoning"
    return Case(made(words, [SYSTEM, TASK], THOUGHT), later, "context_removed", kind, kind, kind)


def reasoning_stripped_by_the_template(words: Words) -> Case:
    later = made(words, [SYSTEM, TASK, THOUGHT, NEXT], ANSWER, thinks=False)
    kind: Cause = "stripped_reasoning"
    return Case(made(words, [SYSTEM, TASK], THOUGHT), later, "context_removed", kind, kind, kind)


def changed_system_prompt(words: Words) -> Case:
    clock = changed(SYSTEM, "agent.", "agent. It is ten past noon.")
    earlier, later = made(words, [SYSTEM, TASK], ANSWER), made(words, [clock, TASK, ANSWER, NEXT], THOUGHT)
    kind: Cause = "changed_system_prompt"
    return Case(earlier, later, "context_inserted", kind, kind, kind)


def changed_tools(words: Words) -> Case:
    earlier = made(words, [SYSTEM, TASK], ANSWER, TOOLS)
    later = made(words, [SYSTEM, TASK, ANSWER, NEXT], THOUGHT, MORE_TOOLS)
    return Case(earlier, later, "context_inserted", "changed_tools", "changed_tools", "changed_tools")


def context_edited(words: Words) -> Case:
    edited = changed(RESULT, "40 passed", "39 passed")
    earlier = made(words, [SYSTEM, TASK, CALLED, RESULT], ANSWER)
    later = made(words, [SYSTEM, TASK, CALLED, edited, ANSWER, NEXT], THOUGHT)
    return Case(earlier, later, "context_changed", "context_edited", "context_edited", "context_edited")


def context_removed(words: Words) -> Case:
    earlier = made(words, [SYSTEM, TASK, CALLED, RESULT, ANSWER, NEXT], ANSWER)
    later = made(words, [SYSTEM, TASK, ANSWER, NEXT], THOUGHT)
    return Case(earlier, later, *["context_removed"] * 4)


def context_inserted(words: Words) -> Case:
    earlier = made(words, [SYSTEM, TASK, ANSWER, NEXT], ANSWER)
    later = made(words, [SYSTEM, TASK, CALLED, RESULT, ANSWER, NEXT], THOUGHT)
    return Case(earlier, later, *["context_inserted"] * 4)


def context_compacted(words: Words) -> Case:
    earlier = made(words, [SYSTEM, TASK, CALLED, RESULT, ANSWER, NEXT], ANSWER)
    later = made(words, [SYSTEM, TASK, SUMMARY, NEXT], THOUGHT)
    return Case(earlier, later, "context_changed", *["context_compacted"] * 3)


def context_compacted_to_its_end(words: Words) -> Case:
    earlier = made(words, [SYSTEM, TASK, CALLED, RESULT, ANSWER, NEXT], ANSWER)
    later = made(words, [SYSTEM, SUMMARY], THOUGHT)
    return Case(earlier, later, "context_changed", *["context_compacted"] * 3)


def other_agent(words: Words) -> Case:
    reviewer = {"role": "system", "content": "You review patches, and name the first problem that you see in them."}
    patch = {"role": "user", "content": "A line was added that strips white space before the date is read from it."}
    earlier, later = made(words, [SYSTEM, TASK], ANSWER), made(words, [reviewer, patch], ANSWER)
    return Case(earlier, later, "context_changed", *["other_agent"] * 3)


def other_conversation(words: Words) -> Case:
    other = {
        "role": "user",
        "content": "Write an entry of the change log for what was done in this week, in one sentence.",
    }
    earlier, later = made(words, [SYSTEM, TASK], ANSWER), made(words, [SYSTEM, other], THOUGHT)
    return Case(earlier, later, "context_changed", *["other_conversation"] * 3)


def retry(words: Words) -> Case:
    earlier, later = made(words, [SYSTEM, TASK], ANSWER), made(words, [SYSTEM, TASK], THOUGHT)
    return Case(earlier, later, *["retry"] * 4)


def sibling(words: Words) -> Case:
    earlier = made(words, [SYSTEM, TASK], ANSWER, episode_id="a")
    return Case(earlier, made(words, [SYSTEM, TASK], THOUGHT, episode_id="b"), *["sibling"] * 4)


CASES: list[Callable[[Words], Case]] = [
    retokenization,
    white_space,
    tool_call_reserialized,
    tool_call_with_keys_in_another_order,
    stripped_reasoning,
    reasoning_stripped_by_the_template,
    changed_system_prompt,
    changed_tools,
    context_edited,
    context_removed,
    context_inserted,
    context_compacted,
    context_compacted_to_its_end,
    other_agent,
    other_conversation,
    retry,
    sibling,
]


@pytest.mark.parametrize("build", CASES, ids=lambda build: build.__name__)
@pytest.mark.parametrize("given", ["ids", "text", "messages", "all"])
def test_causes(build: Callable[[Words], Case], given: str) -> None:
    words = Words()
    case = build(words)
    forest = merge([case.earlier[0], case.later[0]])
    tokenizer = words if given in ("text", "all") else None
    contexts = [case.earlier[1], case.later[1]] if given in ("messages", "all") else None
    (found,) = forest.explain(tokenizer, contexts).departures
    assert found.cause == getattr(case, given), found
    assert found.evidence in {"ids": ("ids",), "text": ("ids", "text"), "messages": ("ids", "messages")}.get(
        given, ("ids", "text", "messages")
    )
    assert (found.text is None) == (tokenizer is None)


@pytest.mark.parametrize("build", CASES, ids=lambda build: build.__name__)
def test_costs(build: Callable[[Words], Case]) -> None:
    """No less than what is equal up to the last that both have, and no more than either holds up to there."""
    words = Words()
    case = build(words)
    earlier, later = case.earlier[0], case.later[0]
    (found,) = merge([earlier, later]).explain(words).departures
    nothing_again = ("other_agent", "other_conversation", "retry", "sibling")
    if found.cause in nothing_again or found.new is None:
        assert found.cost == 0
        return
    end = words.decode(earlier.completion_ids.tolist()[-4:], skip_special_tokens=False)
    if found.cause in ("context_removed", "context_inserted", "context_compacted"):
        end = f"{NEXT['content']}<|im_end|>\n<|im_start|>assistant\n"  # the last that both have
    again, held = (
        up_to(words, ids[found.shared :], end)
        for ids in (later.prompt_ids.tolist(), [*earlier.prompt_ids.tolist(), *earlier.completion_ids.tolist()])
    )
    equal = SequenceMatcher(None, again, held, autojunk=False).get_matching_blocks()
    assert 0 < sum(block.size for block in equal) <= found.cost <= min(len(again), len(held))


def up_to(words: Words, ids: list[int], end: str) -> list[int]:
    """The tokens up to the last place where the text `end` does."""
    last = words.encode(end)
    at = next(at for at in range(len(ids), 0, -1) if ids[:at][-len(last) :] == last)
    return ids[:at]


def explained(words: Words, earlier: Made, later: Made, ends: list[int] | None = None) -> Departure:
    """By messages alone, with the ends of the later call's messages if they are given."""
    context = later[1]
    if ends is not None:
        context = Context(context.messages, context.response, context.tools, ends)  # type: ignore[arg-type]
    (found,) = merge([earlier[0], later[0]]).explain(None, [earlier[1], context]).departures
    return found


def test_message_ends_tell_in_which_message_the_tokens_part() -> None:
    """A message was edited, and an earlier one written in other tokens. Only the ends show that this came first."""
    words = Words()
    edited = [SYSTEM, TASK, ANSWER, changed(NEXT, "Good.", "Fine.")]
    earlier = made(words, [SYSTEM, TASK, ANSWER, NEXT], ANSWER)
    call, context = made(words, edited, ANSWER)
    odd = Call(rewritten(words, call.prompt_ids.tolist(), " repair"), [1], [-1.0])
    ends = [odd.prompt_ids.size if at == 3 else len(words.encode(chatml(edited[: at + 1]))) for at in range(4)]
    found = explained(words, earlier, (odd, context), ends)
    assert (found.cause, found.detail) == ("rendered_differently", "message 1 (user) is the same, its tokens are not")
    assert (
        explained(words, earlier, (call, context)).detail
        == "message 3 (user) differs, and nothing after it is the same"
    )


def rewritten(words: Words, ids: list[int], word: str) -> list[int]:
    """The same text, one word of it in letters."""
    at = ids.index(words.token(word))
    return [*ids[:at], *words.letters(word), *ids[at + 1 :]]


def test_no_cause_is_claimed_from_messages_that_are_not_there() -> None:
    words = Words()
    (earlier, context), later = made(words, [SYSTEM, TASK], ANSWER), made(words, [SYSTEM, TASK, NEXT], THOUGHT)
    unparsed = Context(context.messages)
    forest = merge([earlier, later[0]])
    for contexts in ([unparsed, None], [None, later[1]]):
        (found,) = forest.explain(None, contexts).departures
        assert found.evidence == "ids"


@pytest.mark.parametrize(
    ("template", "evidence"),
    [
        ("<|im_start|>{0}\n{1}<|im_end|>\n", "text"),
        ("<|start_header_id|>{0}<|end_header_id|>\n\n{1}<|eot_id|>", "text"),
        ("<|{0}|>\n{1}<|end|>\n", "text"),
        ("<|start|>{0}<|message|>{1}<|end|>", "text"),
        ("<start_of_turn>{0}\n{1}<end_of_turn>\n", "text"),
        ("<|turn>{0}\n{1}<turn|>\n", "text"),
        ("### {0}\n{1}\n", "ids"),
    ],
)
def test_templates(template: str, evidence: Evidence) -> None:
    """The roles of messages are read from the markers of the template; from unknown ones nothing is."""
    words = Words()

    def call(messages: Messages) -> Call:
        text = "".join(template.format(message["role"], message["content"]) for message in messages)
        return Call(words.encode(text), [1], [-1.0])

    edited = changed(RESULT, "40 passed", "39 passed")
    clock = changed(SYSTEM, "agent.", "agent. It is ten past noon.")
    known = evidence == "text"
    first = [SYSTEM, TASK, ANSWER, RESULT, ANSWER]
    for messages, cause in (
        ([SYSTEM, TASK, ANSWER, edited, ANSWER], "context_edited" if known else "context_changed"),
        ([clock, TASK, ANSWER, RESULT, ANSWER], "changed_system_prompt" if known else "context_inserted"),
    ):
        (found,) = merge([call(first), call(messages)]).explain(words).departures
        assert (found.cause, found.evidence) == (cause, evidence)
    assert not known or "the system" not in found.detail


def test_mistral_and_deepseek() -> None:
    words = Words()
    mistral = "<s>[SYSTEM_PROMPT]{}[/SYSTEM_PROMPT][INST]{}[/INST]{}</s>[INST]{}[/INST]"
    deepseek = "<｜System｜>{}<｜User｜>{}<｜Assistant｜>{}<｜end▁of▁sentence｜><｜User｜>{}<｜Assistant｜>"
    texts = [message["content"] for message in (SYSTEM, TASK, ANSWER, NEXT)]
    for template in (mistral, deepseek):
        for at, cause in ((0, "changed_system_prompt"), (2, "context_edited")):
            edited = [*texts[:at], texts[at].replace(" the ", " a "), *texts[at + 1 :]]
            calls = [
                Call(words.encode(template.format(*text)), [1, 2 + n], [-1, -1])
                for n, text in enumerate((texts, edited))
            ]
            (found,) = merge(calls).explain(words).departures
            assert found.cause == cause


def test_reasoning_that_harmony_writes_as_a_message_of_its_own() -> None:
    words = Words()
    start = f"<|start|>user<|message|>{TASK['content']}<|end|><|start|>assistant"
    thought = f"<|channel|>analysis<|message|>{THOUGHT['reasoning_content']}<|end|><|start|>assistant"
    answer = f"<|channel|>final<|message|>{ANSWER['content']}"
    earlier = Call(words.encode(start), sampled := words.encode(f"{thought}{answer}<|return|>"), [-1] * len(sampled))
    later = Call(words.encode(f"{start}{answer}<|end|><|start|>user<|message|>{NEXT['content']}<|end|>"), [1], [-1])
    (found,) = merge([earlier, later]).explain(words).departures
    assert (found.cause, found.evidence) == ("stripped_reasoning", "text")


def test_a_system_message_in_the_middle_is_no_system_prompt() -> None:
    words = Words()
    reminder = {"role": "system", "content": "The time is noon, and there are three more steps to go before the end."}
    earlier = made(words, [SYSTEM, TASK, ANSWER, reminder, NEXT], THOUGHT)
    later = made(words, [SYSTEM, TASK, ANSWER, changed(reminder, "noon", "one"), NEXT], ANSWER)
    for tokenizer, contexts in ((words, None), (None, [earlier[1], later[1]])):
        (found,) = merge([earlier[0], later[0]]).explain(tokenizer, contexts).departures
        assert found.cause == "context_edited"


def test_a_long_system_prompt_is_read_to_its_beginning() -> None:
    words = Words()
    long = " Be careful, and do not hurry." * 2000
    prompts = [{"role": "system", "content": f"{long} It is {time}."} for time in ("noon", "one")]
    calls = [made(words, [prompt, TASK], ANSWER)[0] for prompt in prompts]
    (found,) = merge(calls).explain(words).departures
    assert (found.cause, found.evidence) == ("changed_system_prompt", "text")


def test_one_text_in_two_tokenizations() -> None:
    """[2009, 64] was sampled, and [90633] came back."""

    class Halves:
        def decode(self, token_ids: list[int], /) -> str:
            return "".join(
                {2009: " agent", 64: "ic", 90633: " agentic"}.get(token, f" w{token}") for token in token_ids
            )

    rest = list(range(100, 200))
    earlier = Call([1, 2, 3], [4, 2009, 64, *rest], [-1.0] * 103)
    later = Call([1, 2, 3, 4, 90633, *rest, 7, 8], [9], [-1.0])
    (found,) = merge([earlier, later]).explain(Halves()).departures
    assert (found.cause, found.gone, found.new, found.cost) == ("retokenization", 2, 1, 101)
    assert found.detail == "2 tokens became 1 token of the same text"
    assert found.sampled


def test_an_edit_that_begins_with_the_same_text_is_no_retokenization() -> None:
    class Letters:
        def decode(self, token_ids: list[int], /) -> str:
            return "".join({1: "a", 2: "b", 3: "ab", 4: "c", 5: "d"}[token] for token in token_ids)

    edited = merge([Call([4, 1, 2, 4, 4], [4], [-1]), Call([4, 3, 5, 5, 5], [4], [-1])])
    assert edited.explain(Letters()).departures[0].cause == "context_changed"
