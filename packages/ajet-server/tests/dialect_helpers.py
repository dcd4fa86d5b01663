"""The same question in every dialect, and what an answer says of its tokens."""

import json
from typing import Any

import httpx2

_FUNCTION = {"name": "add", "parameters": {"type": "object"}}
_MESSAGES = [{"role": "user", "content": "add"}]

ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": _MESSAGES, "tools": [{"type": "function", "function": _FUNCTION}]},
    "/v1/completions": {"prompt": "add", "max_tokens": 200},
    "/v1/responses": {"input": "add", "tools": [{"type": "function", **_FUNCTION}]},
    "/v1/messages": {
        "messages": _MESSAGES,
        "max_tokens": 200,
        "tools": [{"name": "add", "input_schema": {"type": "object"}}],
    },
}
PATHS = tuple(ASKED)
FINISHED = ('"finish_reason":"', "[DONE]", "response.completed", "message_stop", "message_delta")
"""What an event that says "done" holds, in whichever dialect."""


def body_of(path: str, *, stream: bool, **fields: Any) -> dict[str, Any]:
    options = {"stream_options": {"include_usage": True}} if stream and "completions" in path else {}
    return {"model": "tiny", "return_token_ids": True, "stream": stream, **ASKED[path], **options, **fields}


def events_of(text: str) -> list[dict[str, Any]]:
    """The objects of a stream."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def tokens_of(path: str, answer: httpx2.Response, *, stream: bool) -> tuple[list[int], int]:
    """The sampled ids that an answer gives, and how many its usage counts."""
    if not stream:
        return _whole(answer.json())
    events = events_of(answer.text)
    if path == "/v1/responses":
        return _whole(events[-1]["response"])
    if path == "/v1/messages":
        return _whole(events[-2])
    ids = [token for event in events for choice in event["choices"] for token in choice.get("token_ids", [])]
    return ids, events[-1]["usage"]["completion_tokens"]


def _whole(body: dict[str, Any]) -> tuple[list[int], int]:
    usage = body["usage"]
    ids = body["choices"][0]["token_ids"] if "choices" in body else body["token_ids"]
    return ids, usage.get("completion_tokens", usage.get("output_tokens"))
