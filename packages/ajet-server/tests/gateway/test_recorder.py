"""What is stored of a call is enough to give it again."""

import json
import struct
from typing import Any

import numpy as np
import pytest
from gateway_helpers import ADD, user

from ajet_server.capture.calls import CallRecord, WholeCall
from ajet_server.gateway.prompts import Prompt
from ajet_server.gateway.recorder import call_records, generated_of
from ajet_server.gateway.request import ChatRequest, Choice, Conversation, RawPrompt, Started
from ajet_server.gateway.session import Origin
from ajet_server.worker.protocol import Generated

TALK = Conversation([user("a"), {"role": "assistant", "content": "é\u2028"}, user("c")], (ADD,))


def _generated(name: str, reason: Any = "stop", stop: str | None = None) -> Generated:
    return Generated(name, struct.pack("<2i", 5, 6), struct.pack("<2f", -1.5, -0.25), reason, stop, 7, 1, [])


def _choice(index: int) -> Choice:
    return Choice(index, f"call_{index}", "said", "thought", (), 0, "stop", None, [5, 6], (), 0)


def _records(request: ChatRequest, prompt: Prompt, *made: Generated) -> list[CallRecord]:
    started = Started("call_0", 1234, "m", prompt.ids.size, [])
    choices = [_choice(index) for index in range(len(made))]
    origin = Origin("messages", b"digest", retry=False)
    return call_records("e", 10, request, origin, prompt, 20, started, choices, made)


def test_only_what_the_parent_does_not_have_is_stored() -> None:
    prompt = Prompt(np.arange(6, dtype=np.int32), parent_id="p", known_tokens=4, known_messages=2)
    (record,) = _records(ChatRequest("m", TALK, labels={"user": "u"}), prompt, _generated("call_0"))
    assert (record.parent_id, record.prompt_tokens) == ("p", 6)
    assert np.frombuffer(record.prompt_ids, "<i4").tolist() == [4, 5]
    assert json.loads(record.messages) == [user("c")]
    assert (json.loads(record.tools), json.loads(record.labels)) == ([ADD], {"user": "u"})
    assert json.loads(record.response) == {"role": "assistant", "content": "said", "reasoning_content": "thought"}
    assert (record.created, record.dialect, record.request_digest) == (1234, "messages", b"digest")


def test_choices_share_an_answer_and_have_seeds_of_their_own() -> None:
    request = ChatRequest("m", TALK, n=2, seed=5, temperature=0.5, stop=("x",))
    made = [_generated("call_0", stop="x"), _generated("call_1", reason="length")]
    records = _records(request, Prompt(np.arange(3, dtype=np.int32)), *made)
    assert [(one.id, one.seq, one.choice, one.answer_id) for one in records] == [
        ("call_0", 10, 0, "call_0"),
        ("call_1", 11, 1, "call_0"),
    ]
    sampling = [json.loads(one.sampling) for one in records]
    assert [entry["seed"] for entry in sampling] == [5, 6]
    assert [entry["stopped_by"] for entry in sampling] == ["x", None]
    assert {(entry["temperature"], entry["max_tokens"], entry["logprobs_mode"]) for entry in sampling} == {
        (0.5, 20, "processed")
    }


def test_a_prompt_without_messages_has_none() -> None:
    (record,) = _records(ChatRequest("m", RawPrompt("x")), Prompt(np.arange(3, dtype=np.int32)), _generated("call_0"))
    assert (record.messages, record.tools) == ("[]", "[]")


@pytest.mark.parametrize(("reason", "stop"), [("stop", None), ("stop", "x"), ("length", None)])
def test_what_the_engine_gave_comes_back(reason: str, stop: str | None) -> None:
    given = _generated("call_0", reason, stop)
    (record,) = _records(ChatRequest("m", TALK), Prompt(np.arange(3, dtype=np.int32)), given)
    assert generated_of(WholeCall(record, record.prompt_ids, [])) == given
