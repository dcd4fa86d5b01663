"""CAPTURE: what is stored of a call, and a stored call read back."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from ajet_server.capture.calls import CallRecord, WholeCall
from ajet_server.gateway.prompts import Prompt
from ajet_server.gateway.request import ChatRequest, Choice, Conversation, Started
from ajet_server.gateway.sampling import sampling_of
from ajet_server.gateway.session import Origin
from ajet_server.worker import protocol, versions

LOGPROBS_MODE = "processed"
"""Log-probabilities are those of the distribution that was sampled from: after temperature, biases and schema."""


def call_records(
    episode_id: str,
    first_seq: int,
    request: ChatRequest,
    origin: Origin,
    prompt: Prompt,
    max_tokens: int,
    started: Started,
    choices: Sequence[Choice],
    generated: Sequence[protocol.Generated],
) -> list[CallRecord]:
    """The records of an answer's choices."""
    talk = request.prompt if isinstance(request.prompt, Conversation) else None
    messages = _texts(talk.messages[prompt.known_messages :] if talk else [])
    tools = _anything(talk.tools) if talk and talk.tools else "[]"
    labels = _anything(request.labels) if request.labels else "{}"
    return [
        CallRecord(
            id=choice.call_id,
            episode_id=episode_id,
            seq=first_seq + choice.index,
            created=started.created,
            parent_id=prompt.parent_id,
            prompt_ids=prompt.ids[prompt.known_tokens :].astype("<i4", copy=False).tobytes(),
            prompt_tokens=prompt.ids.size,
            completion_ids=one.token_ids,
            logprobs=one.logprobs,
            sampling=_sampling(sampling_of(request, max_tokens, choice.index), one.stop),
            temperature=request.temperature,
            weight_version=one.weight_version,
            finish_reason=one.finish_reason,
            cached_tokens=one.cached_tokens,
            messages=messages,
            tools=tools,
            opening=prompt.opening,
            response=_texts(choice.message()),
            dialect=origin.dialect,
            request_digest=origin.digest,
            answer_id=started.id,
            choice=choice.index,
            labels=labels,
            version_spans=versions.to_text(one.version_spans),
            role=origin.role,
        )
        for choice, one in zip(choices, generated, strict=True)
    ]


@lru_cache
def _sampling(sampling: protocol.Sampling, stopped_by: str | None) -> str:
    fields = {"logprobs_mode": LOGPROBS_MODE, "stopped_by": stopped_by}
    return msgspec.json.encode(msgspec.to_builtins(sampling) | fields).decode()


def _texts(value: Any) -> str:
    """JSON of what holds texts only, as messages do."""
    return msgspec.json.encode(value).decode()


_anything = json.JSONEncoder(ensure_ascii=False).encode
"""JSON of what callers send, of any numbers, as Python reads it."""


def generated_of(call: WholeCall) -> protocol.Generated:
    """What the engine gave, from the record. Alternatives of tokens are not kept."""
    record = call.record
    return protocol.Generated(
        request_id=record.id,
        token_ids=record.completion_ids,
        logprobs=record.logprobs,
        finish_reason="length" if record.finish_reason == "length" else "stop",
        stop=json.loads(record.sampling).get("stopped_by"),
        weight_version=record.weight_version,
        cached_tokens=record.cached_tokens,
        top_logprobs=[],
        version_spans=versions.of_text(record.version_spans),
    )
