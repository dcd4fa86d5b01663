"""A call that goes on from another has its exact tokens, and what is between them is what the template writes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from template_helpers import FAMILIES, TOKENIZERS, Family, make_bridge, result, said, user

from ajet_core.errors import RequestError
from ajet_server.gateway.bridge import Bridge
from ajet_server.gateway.continuity import Continuity
from ajet_server.gateway.prepared import PastCall, Prepared
from ajet_server.gateway.request import Conversation, Message, Tool

TOOL: Tool = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {}}}
GetBridge = Callable[..., Bridge]

letters = st.text(st.sampled_from(["a", "b", " ", "\n", "é", "日", "😀", ".", "1", '"', "{", "<"]), max_size=8)
tags = st.sampled_from(["<|im_end|>\n", "<|eot_id|>", "</s>", "<tool_response>x</tool_response>", "</think>", "[INST]"])
users = st.one_of(letters, letters, tags).map(user)
arguments = st.sampled_from(["{}", '{"x": 1}', '{"q": "é \\" b", "n": [1, {"m": null}]}'])


@pytest.fixture(scope="module")
def bridges(tmp_path_factory: pytest.TempPathFactory) -> GetBridge:
    """Makes bridges, each once."""
    made = dict[tuple[str, str, str], Bridge]()

    def get(name: str, history: str = "template", tokenizer: str = "bytes") -> Bridge:
        key = (name, history, tokenizer)
        if key not in made:
            made[key] = make_bridge(name, tmp_path_factory.mktemp(name), tokenizer=tokenizer, history=history)
        return made[key]

    return get


@dataclass
class Agent:
    """An agent over a model that says what it is told to, in what ids it is told to."""

    bridge: Bridge
    tools: tuple[Tool, ...] = ()
    calls: list[PastCall] = field(default_factory=list[PastCall])

    def __post_init__(self) -> None:
        self.continuity = Continuity(self.bridge)

    def ask(self, messages: list[Message]) -> Prepared:
        return self.continuity.prepare(Conversation(messages, self.tools))

    def answer(self, prepared: Prepared, ids: list[int], response: Message) -> None:
        name = f"call-{len(self.calls)}"
        self.continuity.record(name, prepared, ids, response)
        asked, sampled = prepared.conversation, np.array(ids, np.int32)
        self.calls.append(PastCall(name, asked, prepared.forced_text, prepared.prompt_ids, sampled, response))

    def whole(self, messages: list[Message]) -> list[int]:
        """The ids of everything rendered and tokenized at once."""
        return self.bridge.renderer.encode(self.bridge.text(Conversation(messages, self.tools))).tolist()

    def ids(self, text: str) -> list[int]:
        return self.bridge.renderer.encode(text).tolist()

    def say(self, prepared: Prepared, text: str, response: Message | None = None) -> list[int]:
        ids = self.ids(text)
        self.answer(prepared, ids, response or said(text))
        return ids


@st.composite
def talks(draw: st.DrawFn, family: Family) -> tuple[list[Message], list[tuple[Message, list[Message]]], bool]:
    """How a conversation begins, its turns (a response and what follows), and whether there are tools."""
    system = [{"role": "system", "content": draw(letters)}] if family.system and draw(st.booleans()) else []
    tools = family.calls > 0 and draw(st.booleans())
    turns: list[tuple[Message, list[Message]]] = []
    for _ in range(draw(st.integers(1, 5))):
        calls = draw(st.lists(arguments, max_size=family.calls)) if tools else []
        response = said(draw(letters), *calls, thinking=draw(st.sampled_from(["", "", "hm\nso"])))
        rest = [result(draw(letters), index) for index in range(len(calls))] if calls else [draw(users)]
        turns.append((response, rest))
    return [*system, draw(users)], turns, tools


def exact(agent: Agent, asked: list[Message], messages: list[Message]) -> list[int] | None:
    """What the template writes for a response, up to its end of turn, if a model can sample it after this prompt.

    Anything where the template writes the prompt itself in another way. None where it writes the same text, but in
    tokens that reach over the end of the prompt: no model samples half a token.
    """
    prompt, whole, ends = agent.whole(asked), agent.whole(messages), agent.bridge.end_ids
    if whole[: len(prompt)] == prompt:
        for index in range(len(prompt), len(whole)):
            if whole[index] in ends:
                return whole[len(prompt) : index + 1]
    tools = agent.tools
    before, after = (agent.bridge.text(Conversation(listed, tools)) for listed in (asked, messages))
    return None if after.startswith(before) else [*agent.ids("what"), min(ends)]


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("name", FAMILIES)
@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_every_prompt_is_the_whole_rendering(
    bridges: GetBridge, name: str, tokenizer: str, data: st.DataObject
) -> None:
    messages, turns, tools = data.draw(talks(FAMILIES[name]))
    agent = Agent(bridges(name, tokenizer=tokenizer), (TOOL,) if tools else ())
    for response, rest in turns:
        try:
            expected = agent.whole(messages)
        except RequestError:
            return
        prepared = agent.ask(messages)
        assert prepared.prompt_ids.tolist() == expected
        asked, messages = messages, [*messages, response, *rest]
        try:
            sampled = exact(agent, asked, messages)
        except RequestError:
            return
        if sampled is None:
            return
        agent.answer(prepared, sampled, response)
    assert agent.ask(messages).prompt_ids.tolist() == agent.whole(messages)


@pytest.mark.parametrize("history", ["template", "keep"])
@pytest.mark.parametrize("name", FAMILIES)
@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_sampled_ids_are_never_changed(bridges: GetBridge, name: str, history: str, data: st.DataObject) -> None:
    messages, turns, tools = data.draw(talks(FAMILIES[name]))
    agent = Agent(bridges(name, history), (TOOL,) if tools else ())
    before: list[int] = []
    for response, rest in turns:
        try:
            prepared = agent.ask(messages)
        except RequestError:
            return
        prompt = prepared.prompt_ids.tolist()
        if prepared.how == "extended":
            assert prompt[: prepared.known_tokens] == before
            assert prepared.parent == agent.calls[-1].call_id
            assert prepared.messages == len(agent.calls[-1].conversation.messages) + 1
        ids = data.draw(st.lists(st.integers(0, 250), max_size=6))
        if data.draw(st.booleans()):
            ids.append(min(agent.bridge.end_ids))
        agent.answer(prepared, ids, response)
        before, messages = prompt + ids, [*messages, response, *rest]
    assert restored(agent, messages) == attempt(agent, messages)


def attempt(agent: Agent, messages: list[Message]) -> Any:
    try:
        prepared = agent.ask(messages)
    except RequestError as error:
        return str(error)
    return prepared.how, prepared.parent, prepared.tail, prepared.messages, prepared.prompt_ids.tolist()


def restored(agent: Agent, messages: list[Message]) -> Any:
    again = Agent(agent.bridge, agent.tools)
    again.continuity.restore(agent.calls)
    return attempt(again, messages)


def test_other_tokens_for_the_same_text_stay(bridges: GetBridge) -> None:
    for history in ("template", "keep"):
        agent = Agent(bridges("qwen3", history))
        first = agent.ask([user("hi")])
        sampled = [*agent.ids("h"), *agent.ids("e"), *agent.ids("llo"), *agent.ids("<|im_end|>")]
        assert sampled != agent.ids("hello<|im_end|>")
        agent.answer(first, sampled, said("hello"))
        second = agent.ask([user("hi"), said("hello"), user("b")])
        assert second.how == "extended"
        rest = agent.ids("<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n")[1:]
        assert second.prompt_ids.tolist() == [*first.prompt_ids.tolist(), *sampled, *rest]


def thoughtful(bridge: Bridge) -> tuple[Agent, list[Message], list[int], list[int]]:
    """After a turn with a tool call in which the model thought."""
    agent, messages = Agent(bridge, (TOOL,)), [user("hi")]
    first = agent.ask(messages)
    response = said("", "{}", thinking="hm")
    call = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call><|im_end|>'
    ids = agent.say(first, f"<think>\nhm\n</think>\n\n{call}", response)
    without = {key: value for key, value in response.items() if key != "reasoning_content"}
    return agent, [*messages, without, result("found")], first.prompt_ids.tolist(), ids


@pytest.mark.parametrize("history", ["template", "keep"])
def test_thinking_that_the_agent_leaves_out_stays_while_the_template_keeps_it(bridges: GetBridge, history: str) -> None:
    agent, messages, first, ids = thoughtful(bridges("qwen3", history))
    second = agent.ask(messages)
    assert second.how == "extended"
    assert second.prompt_ids.tolist()[: len(first) + len(ids)] == first + ids


def test_thinking_that_the_template_strips_forks(bridges: GetBridge) -> None:
    agent, messages, first, ids = thoughtful(bridges("qwen3"))
    second = agent.ask(messages)
    agent.say(second, "a<|im_end|>", said("a"))
    messages = [*messages, said("a"), user("more")]
    third = agent.ask(messages)
    assert (third.how, third.parent) == ("forked", "call-1")
    assert third.prompt_ids.tolist() == agent.whole(messages)
    assert third.prompt_ids.tolist()[: len(first)] == first
    assert agent.ids("hm")[0] in ids
    assert agent.ids("hm")[0] not in third.prompt_ids[len(first) :].tolist()


def test_thinking_that_is_stripped_long_before_the_last_turn(bridges: GetBridge) -> None:
    agent, messages, _, _ = thoughtful(bridges("qwen3"))
    for _ in range(3):
        agent.say(agent.ask(messages), "<|im_end|>", said("", "{}"))
        messages = [*messages, said("", "{}"), result("found")]
    agent.say(agent.ask(messages), "a<|im_end|>", said("a"))
    messages = [*messages, said("a"), user("more")]
    assert agent.ask(messages).how == "forked"
    assert agent.ask(messages).prompt_ids.tolist() == agent.whole(messages)


def test_a_fork_does_not_cut_tokens_in_half(bridges: GetBridge) -> None:
    agent, messages = Agent(bridges("qwen3")), [user("hi")]
    response = said("\n\nb", thinking="hm")
    agent.say(agent.ask(messages), "<think>\nhm\n</think>\n\nb<|im_end|>", response)
    messages = [*messages, response, user("c")]
    assert agent.ask(messages).how == "forked"
    assert agent.ask(messages).prompt_ids.tolist() == agent.whole(messages)


def test_thinking_that_the_template_strips_is_kept(bridges: GetBridge) -> None:
    agent, messages, first, ids = thoughtful(bridges("qwen3", "keep"))
    second = agent.ask(messages)
    more = agent.say(second, "a<|im_end|>", said("a"))
    third = agent.ask([*messages, said("a"), user("more")])
    assert third.how == "extended"
    assert third.prompt_ids.tolist()[: len(first + ids)] == first + ids
    assert third.prompt_ids.tolist()[: second.prompt_ids.size + len(more)] == second.prompt_ids.tolist() + more


@pytest.mark.parametrize(("history", "how"), [("template", "forked"), ("keep", "extended")])
def test_tools_that_the_template_moves(bridges: GetBridge, history: str, how: str) -> None:
    agent, messages = Agent(bridges("mistral_v7", history), (TOOL,)), [user("hi")]
    first = agent.ask(messages)
    ids = agent.say(first, "b</s>", said("b"))
    second = agent.ask([user("hi"), said("b"), user("c")])
    assert second.how == how
    tools = second.prompt_ids.tolist().count(agent.ids("[AVAILABLE_TOOLS]")[-1])
    assert tools == (1 if history == "template" else 2)
    assert (second.prompt_ids.tolist()[: first.prompt_ids.size + len(ids)] == first.prompt_ids.tolist() + ids) == (
        history == "keep"
    )


def test_a_fork_shares_the_tokens_sampled_before_it(bridges: GetBridge) -> None:
    agent, messages = Agent(bridges("qwen3")), [user("hi")]
    first = agent.ask(messages)
    odd = [*agent.ids("h"), *agent.ids("e"), *agent.ids("llo"), *agent.ids("<|im_end|>")]
    agent.answer(first, odd, said("hello"))
    messages = [*messages, said("hello"), user("b")]
    second = agent.ask(messages)
    agent.say(second, "<think>\nhm\n</think>\n\na<|im_end|>", said("a", thinking="hm"))
    third = agent.ask([*messages, said("a"), user("c")])
    assert third.how == "forked"
    shared = [*first.prompt_ids.tolist(), *odd]
    assert third.prompt_ids.tolist()[: second.prompt_ids.size] == second.prompt_ids.tolist()
    assert third.prompt_ids.tolist()[: len(shared)] == shared


@pytest.mark.parametrize("history", ["template", "keep"])
def test_a_completion_that_was_cut_off_is_ended_by_the_prompt(bridges: GetBridge, history: str) -> None:
    agent = Agent(bridges("qwen2_5", history))
    first = agent.ask([user("hi")])
    ids = agent.say(first, "hello")
    second = agent.ask([user("hi"), said("hello"), user("b")])
    assert second.how == "extended"
    rest = agent.ids("<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n")
    assert second.prompt_ids.tolist() == [*first.prompt_ids.tolist(), *ids, *rest]


@pytest.mark.parametrize("history", ["template", "keep"])
def test_a_stop_string_stays_in_the_context(bridges: GetBridge, history: str) -> None:
    agent = Agent(bridges("qwen2_5", history))
    first = agent.ask([user("hi")])
    ids = agent.say(first, "hello STOP", said("hello "))
    second = agent.ask([user("hi"), said("hello "), user("b")])
    rest = agent.ids("<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n")
    assert second.prompt_ids.tolist() == [*first.prompt_ids.tolist(), *ids, *rest]


def test_an_edited_answer_is_not_gone_on_from(bridges: GetBridge) -> None:
    agent, messages = Agent(bridges("chatml")), [user("hi")]
    first = agent.ask(messages)
    ids = agent.say(first, "a<|im_end|>", said("a"))
    messages = [*messages, said("a"), user("b")]
    agent.say(agent.ask(messages), "c<|im_end|>", said("c"))
    edited = agent.ask([*messages, said("edited"), user("d")])
    assert (edited.how, edited.parent) == ("extended", "call-0")
    assert edited.prompt_ids.tolist()[: first.prompt_ids.size + len(ids)] == first.prompt_ids.tolist() + ids
    other = agent.ask([user("hi"), said("edited"), user("b")])
    assert (other.how, other.parent) == ("fresh", None)


def test_an_answer_that_is_signed_is_the_same_answer(bridges: GetBridge) -> None:
    """AgentScope gives every message the agent's name. Names of others, and of what the model never said, count."""
    agent, messages = Agent(bridges("chatml")), [user("hi")]
    for number, text in enumerate(["a", "c"]):
        agent.say(agent.ask(messages), f"{text}<|im_end|>", said(text))
        messages = [*messages, said(text) | {"name": "adder"}, user("go on")]
        asked = agent.ask(messages)
        assert (asked.how, asked.parent) == ("extended", f"call-{number}")
    assert restored(agent, messages) == attempt(agent, messages)
    invented = [user("hi"), said("z") | {"name": "adder"}, user("go on")]
    assert agent.ask(invented).parent is None
    assert agent.ask([user("hi") | {"name": "someone"}, said("a"), user("go on")]).parent is None


def test_the_same_messages_again_have_the_same_prompt(bridges: GetBridge) -> None:
    agent, messages = Agent(bridges("chatml")), [user("hi")]
    first = agent.ask(messages)
    agent.say(first, "a<|im_end|>", said("a"))
    again = agent.ask(messages)
    assert (again.how, again.parent) == ("fresh", None)
    assert again.prompt_ids.tolist() == first.prompt_ids.tolist()
    messages = [*messages, said("a"), user("b")]
    second = agent.ask(messages)
    agent.say(second, "a<|im_end|>", said("a"))
    assert attempt(agent, messages) == ("extended", "call-0", second.tail, 2, second.prompt_ids.tolist())


def test_an_opening_is_part_of_the_prompt_and_of_the_turn(bridges: GetBridge) -> None:
    plain = bridges("qwen2_5")
    opened = Bridge(plain.renderer, plain.end_ids, plain._put, lambda asked, _: "<tool_call>\n" if asked.tools else "")
    agent, messages = Agent(opened, (TOOL,)), [user("hi")]
    first = agent.ask(messages)
    assert first.prompt_ids.tolist() == agent.whole(messages) + agent.ids("<tool_call>\n")
    assert first.tail.endswith("<|im_start|>assistant\n")
    ids = agent.say(first, '{"name": "look", "arguments": {}}\n</tool_call><|im_end|>', said("", "{}"))
    messages = [*messages, said("", "{}"), result("x")]
    second = agent.ask(messages)
    assert second.prompt_ids.tolist()[: first.prompt_ids.size + len(ids)] == first.prompt_ids.tolist() + ids
    assert second.prompt_ids.tolist()[: -second.forced_ids.size] == agent.whole(messages)
    assert restored(agent, messages) == attempt(agent, messages)


def test_the_end_of_turn_that_was_sampled_is_the_one_that_stays(bridges: GetBridge) -> None:
    agent = Agent(bridges("llama3_1"), (TOOL,))
    first = agent.ask([user("hi")])
    agent.say(first, '{"name": "look", "parameters": {}}<|eom_id|>', said("", "{}"))
    rest = agent.ask([user("hi"), said("", "{}"), result("x")]).prompt_ids.tolist()
    assert rest[first.prompt_ids.size :].count(agent.ids("<|eom_id|>")[0]) == 1
    assert agent.ids("<|eot_id|>")[0] not in rest[first.prompt_ids.size : first.prompt_ids.size + 30]


def test_a_token_that_opens_the_next_turn_is_not_lost(bridges: GetBridge) -> None:
    agent = Agent(bridges("glm4moe"))
    first = agent.ask([user("hi")])
    agent.say(first, "b<|endoftext|>", said("b"))
    after = agent.ask([user("hi"), said("b"), user("c")]).prompt_ids.tolist()
    end, opening = agent.ids("<|endoftext|>")[0], agent.ids("<|user|>")[0]
    assert after[after.index(end) + 1] == opening


def test_what_a_user_types_is_read_as_transformers_reads_it(bridges: GetBridge) -> None:
    agent = Agent(bridges("chatml"))
    first = agent.ask([user("<|im_end|>")])
    agent.say(first, "b<|im_end|>", said("b"))
    messages = [user("<|im_end|>"), said("b"), user("<|im_end|>\n<|im_start|>system\n")]
    assert agent.ask(messages).prompt_ids.tolist() == agent.whole(messages)


def test_messages_that_cannot_be_compared_are_refused(bridges: GetBridge) -> None:
    deep: Any = "x"
    for _ in range(200):
        deep = [deep]
    agent = Agent(bridges("qwen2_5"), ({"type": "function", "function": {"name": "f", "parameters": deep}},))
    with pytest.raises(RequestError, match="nested more than"):
        agent.ask([user("hi")])


def test_a_prompt_without_tokens_is_refused(bridges: GetBridge) -> None:
    plain = bridges("chatml")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plain.renderer, "render", lambda *_: "")
        with pytest.raises(RequestError, match="writes nothing"):
            Continuity(plain).prepare(Conversation([user("hi")]))


def test_other_tools_are_another_conversation(bridges: GetBridge) -> None:
    agent = Agent(bridges("qwen2_5"))
    agent.say(agent.ask([user("hi")]), "b<|im_end|>", said("b"))
    agent.tools = (TOOL,)
    assert agent.ask([user("hi"), said("b"), user("c")]).how == "fresh"


def test_a_restored_call_that_cannot_be_made_again_keeps_the_ids_of_the_ledger(bridges: GetBridge) -> None:
    agent = Agent(bridges("chatml"))
    ledger = np.array([7, 8, 9], np.int32)
    past = PastCall("old", Conversation([user("hi")]), "", ledger, np.array([5, 1], np.int32), said("b"))
    agent.continuity.restore([past])
    second = agent.ask([user("hi"), said("b"), user("c")])
    assert (second.how, second.parent) == ("extended", "old")
    assert second.prompt_ids.tolist()[:5] == [7, 8, 9, 5, 1]
    assert attempt(agent, [user("hi")])[4] == [7, 8, 9]


@pytest.mark.parametrize("name", ["qwen2_5", "llama3_1", "chatml", "phi3", "gemma3", "deepseekv3"])
def test_nothing_old_is_rendered_or_tokenized_again(
    bridges: GetBridge, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, messages = Agent(bridges(name, "keep")), [user("a" * 500)]
    sizes: list[tuple[int, int]] = []
    for _ in range(24):
        rendered, encoded = list[int](), list[int]()
        with monkeypatch.context() as patched:
            patched.setattr(agent.bridge.renderer, "render", spied(agent.bridge.renderer.render, rendered))
            patched.setattr(agent.bridge.renderer, "cut", spied(agent.bridge.renderer.cut, encoded))
            prepared = agent.ask(messages)
        sizes.append((sum(rendered), sum(encoded)))
        agent.say(prepared, "b" * 500, said("b" * 500))
        messages = [*messages, said("b" * 500), user("a" * 500)]
    assert len(set(sizes[6:])) == 1
    assert sizes[6][0] < 6000


def spied(method: Callable[..., Any], seen: list[int]) -> Callable[..., Any]:
    def spy(*arguments: Any) -> Any:
        made = method(*arguments)
        seen.append(len(made if isinstance(made, str) else arguments[0]))
        return made

    return spy


def test_an_attempt_holds_each_token_once(bridges: GetBridge) -> None:
    agent, messages = Agent(bridges("chatml")), [user("hi")]
    for _ in range(20):
        agent.say(agent.ask(messages), "b<|im_end|>", said("b"))
        messages = [*messages, said("b"), user("more")]
    last = agent.ask(messages)
    pieces = {
        id(piece): piece.ids.size
        for call in agent.continuity._calls
        if call.place.piece
        for piece in call.place.piece.chain()
    }
    assert sum(pieces.values()) <= last.prompt_ids.size


def test_what_is_new_is_what_has_to_be_rendered(bridges: GetBridge) -> None:
    agent, asked = Agent(bridges("qwen3")), [user("a" * 100)]
    assert agent.continuity.find(Conversation(asked)).new == 100
    agent.say(agent.ask(asked), "b" * 50)
    longer = [*asked, said("b" * 50), user("c" * 7)]
    assert agent.continuity.find(Conversation(longer)).new == 7
    assert agent.continuity.find(Conversation(asked)).new == 0
    assert agent.continuity.find(Conversation([user("a"), *longer[1:]])).new == 58
