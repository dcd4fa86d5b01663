"""Prompts are made once, and found again in the ledger."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from call_helpers import make_call
from gateway_helpers import ADD, ids_of, user
from template_helpers import make_family

from ajet_core.config import GatewayConfig
from ajet_core.errors import RequestError
from ajet_server.capture.calls import WholeCall
from ajet_server.gateway.continuity import Continuity
from ajet_server.gateway.prompts import Prompt, Prompts, past_call
from ajet_server.gateway.request import ChatRequest, Conversation, IntIds, RawPrompt
from ajet_server.models.folder import open_model_folder

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def prompts(model: Path) -> Prompts:
    return Prompts(open_model_folder(str(model)), GatewayConfig())


@pytest.fixture(scope="module", params=["qwen3", "qwen3_5_think"])
def thinkers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Prompts:
    return Prompts(make_family(request.param, tmp_path_factory.mktemp("thinker")), GatewayConfig())


def _ask(prompt: Any) -> ChatRequest:
    return ChatRequest("m", prompt)


def _stored(prompt: Prompt, **fields: Any) -> WholeCall:
    ids = prompt.ids.astype("<i4").tobytes()
    record = make_call("call_x", "e", 0, prompt_ids=ids, prompt_tokens=prompt.ids.size, opening=prompt.opening)
    return WholeCall(record, ids, fields.get("messages", []))


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_a_recorded_prompt_is_read_as_the_one_that_was_made(thinkers: Prompts, choice: Any) -> None:
    asked = _ask(Conversation([user("a")], (ADD,), tool_choice=choice))
    made = await thinkers.make(thinkers.continuity(), asked)
    again = thinkers.recorded(_stored(made), asked)
    assert (again.ids.tolist(), again.opening, again.thinking) == (made.ids.tolist(), made.opening, made.thinking)


@pytest.mark.parametrize("content", ["hello world", np.asarray([3, 1, 0, 2], np.int32)])
async def test_raw_prompts_are_taken_as_they_are(prompts: Prompts, model: Path, content: str | IntIds) -> None:
    asked = _ask(RawPrompt(content))
    made = await prompts.make(prompts.continuity(), asked)
    assert made.ids.tolist() == (ids_of(model, content) if isinstance(content, str) else content.tolist())
    assert (made.parent_id, made.prepared, made.known_tokens) == (None, None, 0)
    assert prompts.recorded(_stored(made), asked).ids.tolist() == made.ids.tolist()


async def test_an_empty_prompt_is_refused(prompts: Prompts) -> None:
    with pytest.raises(RequestError) as refused:
        await prompts.make(prompts.continuity(), _ask(RawPrompt("")))
    assert refused.value.field == "prompt"


@pytest.mark.parametrize("size", [10, 30_000])
async def test_long_conversations_are_made_elsewhere_and_are_the_same(prompts: Prompts, model: Path, size: int) -> None:
    made = await prompts.make(prompts.continuity(), _ask(Conversation([user("a" * size)])))
    text = f"<|im_start|>user\n{'a' * size}<|im_end|>\n<|im_start|>assistant\n"
    assert made.ids.tolist() == ids_of(model, text)


async def test_calls_have_ids_that_follow_from_the_call(prompts: Prompts, model: Path) -> None:
    asked = _ask(Conversation([user("a")], (ADD,)))
    made = await prompts.make(prompts.continuity(), asked)
    text = '<tool_call>{"name": "add", "arguments": {}}</tool_call>' * 2
    found: list[list[str]] = []
    for _ in range(2):
        reader = prompts.reader(asked, made, "call_x")
        reader.push(ids_of(model, text))
        found.append([call.id for call in reader.finish("stop", None)[1].tool_calls])
    assert found == [["call_x_0", "call_x_1"]] * 2


async def _goes_on(prompts: Prompts, continuity: Continuity, messages: list[Any]) -> Prompt:
    return await prompts.make(continuity, _ask(Conversation(messages)))


async def test_what_goes_on_names_what_its_parent_has(prompts: Prompts, model: Path) -> None:
    continuity = prompts.continuity()
    first = await _goes_on(prompts, continuity, [user("a")])
    assert first.prepared is not None
    said, response = [*ids_of(model, "hello"), 1], {"role": "assistant", "content": "hello"}
    continuity.record("call_x", first.prepared, said, response)
    second = await _goes_on(prompts, continuity, [user("a"), response, user("b")])
    assert (second.parent_id, second.known_messages) == ("call_x", 2)
    assert second.known_tokens == first.ids.size + len(said)
    assert second.ids.tolist()[: second.known_tokens] == [*first.ids.tolist(), *said]
    fresh = await _goes_on(prompts, continuity, [user("a"), user("b")])
    assert (fresh.parent_id, fresh.known_tokens, fresh.known_messages) == (None, 0, 0)


def test_a_past_call_is_what_the_ledger_holds() -> None:
    said = '{"role": "assistant", "content": "b"}'
    record = make_call("call_x", "e", 0, response=said, tools='[{"type": "function"}]')
    past = past_call(WholeCall(record, b"\1\0\0\0", [user("a")]))
    assert past is not None
    assert (past.prompt_ids.tolist(), past.completion_ids.tolist()) == ([1], [0])
    assert (past.conversation.messages, past.conversation.tools) == ([user("a")], ({"type": "function"},))
    assert past_call(WholeCall(record, b"\1\0\0\0", [])) is None
