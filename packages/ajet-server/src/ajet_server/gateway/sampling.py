"""From what an agent asks for to what the engine is told, within the bounds of model, job and episode."""

import msgspec

from ajet_core.errors import BudgetError, PromptTooLongError, RequestError, UnavailableError
from ajet_server.gateway.request import ChatRequest
from ajet_server.worker import protocol

_SEEDS = 2**63


class Room(msgspec.Struct, frozen=True):
    """How much a call may sample.

    Attributes:
        longest: prompt + completion of a call, in tokens; None where nothing bounds it.
        most: `limits.max_completion_tokens`.
        left: of the episode's `limits.max_episode_tokens`; None without such a bound.
        reserved: of these, how many calls that run may still sample.
    """

    longest: int | None
    most: int
    left: int | None
    reserved: int = 0

    def max_tokens(self, request: ChatRequest, prompt_tokens: int) -> int:
        """Bound on one completion of the request.

        Raises:
            RequestError: it asks for more than the job allows.
            PromptTooLongError: prompt and completion do not fit.
            BudgetError: the episode has no token left.
            UnavailableError: what is left is reserved for calls that run; a retry makes sense.
        """
        wanted = request.max_tokens
        if wanted is not None and wanted > self.most:
            raise RequestError(
                f"max_tokens: {wanted} exceeds limits.max_completion_tokens={self.most}", field="max_tokens"
            )
        room = self.most if self.longest is None else self.longest - prompt_tokens
        if room < 1 or (wanted is not None and wanted > room):
            asked = f" and max_tokens={wanted}" if wanted else ""
            raise PromptTooLongError(
                f"messages: the prompt has {prompt_tokens} tokens{asked}, the context is {self.longest}; shorten it",
                field="messages",
            )
        allowed = wanted or min(self.most, room)
        if self.left is None:
            return allowed
        if self.left < request.n:
            raise BudgetError("the episode has sampled its limits.max_episode_tokens; report its reward")
        share = (self.left - self.reserved) // request.n
        if share < 1:
            raise UnavailableError(
                f"limits.max_episode_tokens: calls that run may need the {self.left} tokens that the episode has left; "
                "send it again when they are over, or give each call a max_tokens",
                retry_after_s=1.0,
            )
        return min(allowed, share)


def check_trainable(request: ChatRequest) -> None:
    """Refuses sampling whose log-probabilities the update could not reproduce.

    Greedy tokens have no probability to weigh, and a distribution that is cut by top-p, top-k or a schema, or shifted
    by biases, is not the one that the trainer computes. Temperature is recorded and reproduced, so any positive one is
    fine.

    Raises:
        RequestError: names the parameter.
    """
    remedy = "for a train episode; leave it out, or open the episode with kind='eval'"
    if request.temperature == 0:
        raise RequestError(
            f"temperature: 0 (greedy) cannot be trained on; send a positive one {remedy}", field="temperature"
        )
    if request.top_p < 1:
        raise RequestError(
            f"top_p: {request.top_p} cuts the distribution and cannot be corrected {remedy}", field="top_p"
        )
    if request.top_k > 0:
        raise RequestError(
            f"top_k: {request.top_k} cuts the distribution and cannot be corrected {remedy}", field="top_k"
        )
    if request.logit_bias:
        raise RequestError(
            f"logit_bias: it shifts the distribution and cannot be corrected {remedy}", field="logit_bias"
        )
    if request.response_format is not None:
        raise RequestError(
            f"response_format: it cuts the distribution and cannot be corrected {remedy}", field="response_format"
        )


def sampling_of(request: ChatRequest, max_tokens: int, choice: int) -> protocol.Sampling:
    """What the engine is told for one choice. Choices of a seeded request have seeds of their own."""
    wanted = request.response_format
    return protocol.Sampling(
        max_tokens=max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        stop=request.stop,
        seed=None if request.seed is None else (request.seed + choice) % _SEEDS,
        top_logprobs=request.top_logprobs if request.logprobs else 0,
        logit_bias=request.logit_bias,
        json_schema=None if wanted is None else msgspec.json.encode(wanted.schema or {}).decode(),
    )
