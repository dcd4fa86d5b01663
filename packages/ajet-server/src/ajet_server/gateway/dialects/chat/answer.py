"""A finished answer as the body of Chat Completions, and an error as OpenAI's API tells it."""

from typing import Any

from ajet_server.gateway.dialects.chat.options import Parsed
from ajet_server.gateway.request import Answer, Choice, TokenLogprob

_LOWEST_LOGPROB = -9999.0
"""What OpenAI's API says instead of minus infinity, which JSON cannot."""

_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 410: "permission_error"}


def answer(parsed: Parsed, answer: Answer) -> dict[str, Any]:
    """Returns the response body."""
    return whole("chat.completion", parsed, answer, [_choice(parsed, choice) for choice in answer.choices])


def whole(kind: str, parsed: Parsed, answer: Answer, choices: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns what the bodies of Chat Completions and Completions have in common, around the choices."""
    body: dict[str, Any] = {
        "id": answer.id,
        "object": kind,
        "created": answer.created,
        "model": answer.model,
        "choices": choices,
        "usage": usage(answer),
        "system_fingerprint": fingerprint(answer),
    }
    if parsed.request.return_token_ids:
        body["prompt_token_ids"] = answer.prompt_ids
    return body


def fingerprint(answer: Answer) -> str:
    """Names the weights: equal requests with equal seeds are answered alike as long as it stays.

    `weights-3+4` is an answer that was begun with version 3 and went on with version 4.
    """
    return f"weights-{'+'.join(map(str, answer.weight_versions))}"


def sampled_ids(choice: Choice) -> dict[str, Any]:
    """What `return_token_ids` adds to a finished choice."""
    return {"token_ids": choice.token_ids, **weight_versions(choice)}


def weight_versions(choice: Choice) -> dict[str, Any]:
    """[first token, version] of each run of its tokens that weights of one version sampled."""
    return {"weight_versions": [list(run) for run in choice.versions]}


def usage(answer: Answer) -> dict[str, Any]:
    """Counts tokens: those of the prompt once, those of the completions together."""
    completion_tokens = answer.completion_tokens
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": answer.prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
    }


def _choice(parsed: Parsed, choice: Choice) -> dict[str, Any]:
    message = choice.message() | {"refusal": None}
    if choice.tool_calls and not choice.text:
        message["content"] = None
    body: dict[str, Any] = {
        "index": choice.index,
        "message": message,
        "logprobs": chat_logprobs(choice.logprobs) if parsed.request.logprobs else None,
        "finish_reason": choice.finish_reason,
    }
    if parsed.request.return_token_ids:
        body |= sampled_ids(choice)
    return body


def chat_logprobs(tokens: tuple[TokenLogprob, ...]) -> dict[str, Any]:
    """Log-probabilities of sampled tokens, thinking, tool calls and special tokens among them."""
    content = [
        _entry(token.text, token.logprob) | {"top_logprobs": [_entry(text, value) for text, value in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _entry(text: str, logprob: float) -> dict[str, Any]:
    # A token that is a part of a character has no text, so its bytes are not known here; `null` says so.
    known = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": finite(logprob), "bytes": known}


def finite(logprob: float) -> float:
    """A log-probability that JSON can say."""
    return max(logprob, _LOWEST_LOGPROB)


def error_body(message: str, code: str, status: int, field: str | None = None) -> dict[str, Any]:
    """Returns the body of an error: `{"error": {message, type, param, code}}`.

    Args:
        message: a sentence for a person.
        code: machine-readable.
        status: the HTTP status that it has, or would have had.
        field: the one to blame.
    """
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": field, "code": code}}
