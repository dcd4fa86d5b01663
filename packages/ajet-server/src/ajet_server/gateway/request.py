"""The internal request and result in which all dialects meet."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A conversation to continue, and how to sample.

    Attributes:
        messages: `role`, `content` and further keys, as the chat template wants them.
        max_tokens: bound on the completion; None for the job's default.
    """

    model: str
    messages: list[dict[str, str]]
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    stop: tuple[str, ...]
    seed: int | None
    logprobs: bool
    top_logprobs: int


@dataclass(frozen=True, slots=True)
class ChatResult:
    """A finished call.

    Attributes:
        text: of the sampled ids, special tokens and everything from the stop string on left out.
        token_ids: every sampled id; `len(token_ids)` is what usage reports.
        tokens: text of each sampled id; filled when log-probabilities were asked for.
        logprobs: at the sampling temperature, one per sampled id; likewise.
        top_logprobs: (text, logprob) pairs per sampled id; likewise.
    """

    call_id: str
    text: str
    token_ids: list[int]
    tokens: list[str]
    logprobs: list[float]
    top_logprobs: list[list[tuple[str, float]]]
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    weight_version: int
