"""Refuses a request that the engine cannot serve as it is, before it takes a slot."""

import math

from ajet_core.errors import PromptTooLongError, RequestError
from ajet_server.engines.base import GenerationRequest
from ajet_server.worker.protocol import Sampling

MIN_TEMPERATURE = 1e-3
"""Less is greedy in all but name, and would only lose precision; 0 says so openly."""
MAX_BIAS = 100.0
"""As in the OpenAI API. It is as good as a ban or an order, and no logit overflows with it."""


def check_request(request: GenerationRequest, *, vocab_size: int, max_model_len: int) -> None:
    """Checks a request against the model.

    Raises:
        PromptTooLongError: prompt and completion do not fit the model.
        RequestError: something else is out of bounds; names the field, its value and what would be right.
    """
    _check_prompt(request, vocab_size)
    _check_sampling(request.sampling, vocab_size)
    length, room = len(request.prompt_ids), request.sampling.max_tokens
    if length + room > max_model_len:
        raise PromptTooLongError(
            f"prompt_ids: {length} prompt tokens and max_tokens={room} exceed the {max_model_len} tokens that the "
            "engine holds per call; shorten the prompt or ask for fewer tokens",
            field="prompt_ids",
        )


def _check_prompt(request: GenerationRequest, vocab_size: int) -> None:
    ids = request.prompt_ids
    if len(ids) == 0:
        raise RequestError("prompt_ids: is empty; give at least one token", field="prompt_ids")
    lowest, highest = int(ids.min()), int(ids.max())
    if lowest < 0 or highest >= vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise RequestError(
            f"prompt_ids: holds the id {wrong}, but ids of this model are 0 to {vocab_size - 1}", field="prompt_ids"
        )


def _check_sampling(sampling: Sampling, vocab_size: int) -> None:
    _require(sampling.max_tokens >= 1, "max_tokens", sampling.max_tokens, "at least 1")
    warm = sampling.temperature == 0 or (
        math.isfinite(sampling.temperature) and sampling.temperature >= MIN_TEMPERATURE
    )
    _require(warm, "temperature", sampling.temperature, f"0 (greedy) or a finite number from {MIN_TEMPERATURE}")
    _require(0 < sampling.top_p <= 1, "top_p", sampling.top_p, "more than 0 and at most 1")
    _require(sampling.top_k >= 0, "top_k", sampling.top_k, "0 (off) or more")
    most = 0 <= sampling.top_logprobs <= vocab_size
    _require(most, "top_logprobs", sampling.top_logprobs, f"0 to {vocab_size}, the size of the vocabulary")
    _require("" not in sampling.stop, "stop", list(sampling.stop), "strings of at least one character")
    for token_id, bias in sampling.logit_bias:
        _require(0 <= token_id < vocab_size, "logit_bias", token_id, f"ids of this model, 0 to {vocab_size - 1}")
        _require(-MAX_BIAS <= bias <= MAX_BIAS, "logit_bias", bias, f"biases from {-MAX_BIAS:g} to {MAX_BIAS:g}")


def _require(holds: bool, field: str, value: object, right: str) -> None:
    if not holds:
        raise RequestError(f"{field}: is {value!r}; give {right}", field=field)
