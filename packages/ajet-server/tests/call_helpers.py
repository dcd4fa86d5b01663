"""A captured call for tests that do not look into it."""

from typing import Any

from ajet_server.capture.calls import CallRecord


def make_call(call_id: str, episode_id: str, seq: int, **fields: Any) -> CallRecord:
    """Two prompt tokens, one sampled."""
    whole: dict[str, Any] = {
        "id": call_id,
        "episode_id": episode_id,
        "seq": seq,
        "created": 0,
        "parent_id": None,
        "prompt_ids": b"\0" * 8,
        "prompt_tokens": 2,
        "completion_ids": b"\0" * 4,
        "logprobs": b"\0" * 4,
        "sampling": "{}",
        "temperature": 1.0,
        "weight_version": 0,
        "finish_reason": "stop",
        "cached_tokens": 0,
        "messages": "[]",
        "tools": "[]",
        "opening": "",
        "response": "{}",
        "dialect": "chat",
        "request_digest": b"",
        "answer_id": call_id,
        "choice": 0,
        "labels": "{}",
    }
    return CallRecord(**whole | fields)
