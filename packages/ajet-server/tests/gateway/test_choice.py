"""A choice read while it is sampled."""

import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from gateway_helpers import ADD, CALL, END, ids_of, user
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.config import GatewayConfig
from ajet_server.gateway.choice import ChoiceBuilder
from ajet_server.gateway.prompts import Prompt, Prompts
from ajet_server.gateway.request import ChatRequest, Choice, Conversation, Delta
from ajet_server.models.folder import open_model_folder
from ajet_server.worker.protocol import Generated, Sampled

Build = Callable[[bool], ChoiceBuilder]


@pytest.fixture(scope="module")
def build(model: Path) -> Build:
    prompts = Prompts(open_model_folder(str(model)), GatewayConfig())
    request = ChatRequest("m", Conversation([user("a")], (ADD,)))
    prompt = Prompt(np.zeros(1, np.int32))

    def make(names: bool) -> ChoiceBuilder:
        reader = prompts.reader(request, prompt, "call_x")
        return ChoiceBuilder(2, "call_x", reader, prompts.renderer if names else None)

    return make


def _sampled(ids: Sequence[int], start: int, stop: int) -> Sampled:
    part = ids[start:stop]
    tops = [[(token, -1.0), (0, -2.0)] for token in part]
    logprobs = struct.pack(f"<{len(part)}f", *(-float(at) for at in range(start, start + len(part))))
    return Sampled("call_x", start, struct.pack(f"<{len(part)}i", *part), logprobs, tops)


def _generated(ids: Sequence[int]) -> Generated:
    whole = _sampled(ids, 0, len(ids))
    return Generated("call_x", whole.token_ids, whole.logprobs, "stop", None, 3, 0, whole.top_logprobs)


def _read(builder: ChoiceBuilder, ids: Sequence[int], cuts: Sequence[int]) -> tuple[list[Delta], Choice]:
    deltas: list[Delta] = []
    start = 0
    for cut in cuts:
        deltas.append(builder.push(_sampled(ids, start, cut)))
        start = cut
    last, choice = builder.finish(_generated(ids))
    return [*deltas, last], choice


@given(data=st.data(), names=st.booleans(), called=st.booleans())
def test_deltas_add_up_to_the_choice_however_it_is_cut(
    build: Build, model: Path, data: st.DataObject, names: bool, called: bool
) -> None:
    ids = data.draw(st.lists(st.integers(0, 290), max_size=12))
    ids = [*ids, *(ids_of(model, CALL) if called else []), END]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    deltas, choice = _read(build(names), ids, cuts)
    (_, whole) = _read(build(names), ids, [])
    assert choice == whole, "the cuts change nothing"
    assert "".join(delta.text for delta in deltas) == choice.text
    assert "".join(delta.reasoning for delta in deltas) == choice.reasoning
    assert tuple(call for delta in deltas for call in delta.tool_calls) == choice.tool_calls
    assert [token for delta in deltas for token in delta.tokens] == choice.token_ids == ids
    assert tuple(entry for delta in deltas for entry in delta.logprobs) == choice.logprobs
    assert all(delta.index == choice.index == 2 for delta in deltas)
    if names:
        assert [entry.token_id for entry in choice.logprobs] == ids
        assert [entry.logprob for entry in choice.logprobs] == [-float(at) for at in range(len(ids))]
        assert all(entry.top[0] == (entry.text, -1.0) for entry in choice.logprobs)
        assert all(len(delta.logprobs) == len(delta.tokens) for delta in deltas)
    else:
        assert choice.logprobs == ()


def test_a_call_is_told_whole_with_all_its_tokens(build: Build, model: Path) -> None:
    ids = [*ids_of(model, f"a{CALL}"), END]
    deltas, choice = _read(build(False), ids, range(1, len(ids)))
    (told,) = [delta for delta in deltas if delta.tool_calls]
    assert told.tool_calls == choice.tool_calls
    assert list(told.tokens) == ids_of(model, CALL)
    assert [delta.text for delta in deltas if delta.text] == ["a"]


def test_alternatives_that_are_not_known_are_none(build: Build) -> None:
    _, choice = build(True).finish(
        Generated("call_x", struct.pack("<2i", 5, END), struct.pack("<2f", -1, -2), "stop", None, 0, 0, [])
    )
    assert [entry.top for entry in choice.logprobs] == [(), ()]
