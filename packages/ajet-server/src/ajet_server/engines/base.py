"""What an engine is: token ids in, token ids and log-probabilities out.

An engine never sees text except to look for stop strings, and never guesses: it reports exactly the ids it was
given and the ids it sampled (contract 1, capture), with the weight version that sampled them (contract 8, sync).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from ajet_core.errors import RequestError
from ajet_server.worker.protocol import Generated, Sampled, Sampling
from ajet_server.worker.versions import Spans

IntIds = npt.NDArray[np.int32]
Logprobs = npt.NDArray[np.float32]
FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One call.

    Attributes:
        request_id: unique among the calls in flight.
        prompt_ids: i32[P], P >= 1, P + sampling.max_tokens <= the engine's `max_model_len`.
        sampling: how to sample.
        stream: whether its tokens are told as they are sampled.
        weights: the weight version that samples it; None is the live one.
        evaluation: calls that are to be trained go first.
    """

    request_id: str
    prompt_ids: IntIds
    sampling: Sampling
    stream: bool = False
    weights: int | None = None
    evaluation: bool = False


@dataclass(frozen=True, slots=True)
class Completion:
    """What a call sampled.

    Attributes:
        token_ids: i32[C], every sampled id, the end token or the tokens of a stop string included.
        logprobs: f32[C], log-probability of each in the distribution it was sampled from, see `Sampling`.
        finish_reason: `stop` (end token or stop string) or `length`.
        stop: the stop string that ended it, if one did.
        weight_version: of the weights that sampled the first of these tokens.
        cached_tokens: prompt tokens whose keys and values were reused.
        top_logprobs: per sampled token, the `sampling.top_logprobs` likeliest (id, logprob) pairs, likeliest first;
            fewer where a schema allows no more.
        version_spans: which weights sampled which of these tokens, if weights changed in between.
    """

    request_id: str
    token_ids: IntIds
    logprobs: Logprobs
    finish_reason: FinishReason
    stop: str | None
    weight_version: int
    cached_tokens: int
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list[list[tuple[int, float]]])
    version_spans: Spans = ()

    def message(self) -> Generated:
        """Returns it as the worker sends it."""
        return Generated(
            request_id=self.request_id,
            token_ids=self.token_ids.astype("<i4", copy=False).tobytes(),
            logprobs=self.logprobs.astype("<f4", copy=False).tobytes(),
            finish_reason=self.finish_reason,
            stop=self.stop,
            weight_version=self.weight_version,
            cached_tokens=self.cached_tokens,
            top_logprobs=self.top_logprobs,
            version_spans=self.version_spans,
        )


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call that cannot go on, through no fault of the engine; it is not here any more."""

    request_id: str
    error: RequestError


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step came to.

    Attributes:
        sampled: what streamed calls sampled; of those that the step finished too.
        completions: the calls that it finished.
        refusals: the calls that failed in it.
    """

    sampled: list[Sampled] = field(default_factory=list[Sampled])
    completions: list[Completion] = field(default_factory=list[Completion])
    refusals: list[Refusal] = field(default_factory=list[Refusal])


@dataclass(frozen=True, slots=True)
class Scored:
    """What `Engine.score` found.

    Attributes:
        logprobs: f32[T - start].
        cached_tokens: prompt tokens whose keys and values were reused.
    """

    logprobs: Logprobs
    cached_tokens: int


class Engine(Protocol):
    """A continuous batch. Single-threaded: the worker calls `step` as long as `has_work`."""

    @property
    def weight_version(self) -> int:
        """The version that is being sampled from."""
        ...

    @property
    def max_model_len(self) -> int:
        """Prompt + completion, in tokens."""
        ...

    @property
    def has_work(self) -> bool:
        """True while a call is running or waiting."""
        ...

    @property
    def running(self) -> int:
        """Calls that hold a slot."""
        ...

    @property
    def waiting(self) -> int:
        """Calls that wait for a slot."""
        ...

    def submit(self, request: GenerationRequest) -> None:
        """Queues a call; it joins the running batch at the next step that has a free slot."""
        ...

    def cancel(self, request_id: str) -> bool:
        """Drops a call and frees its slot. Returns False if it is not here (finished already, say)."""
        ...

    def step(self) -> Outcome:
        """Runs one forward pass over all running calls (new tokens of prompts and one token each of the others)."""
        ...

    def pause(self) -> int:
        """Takes running calls out of their slots, so that weights may change, and returns how many there were.

        They go on at the next step: what they sampled stays as it is, their keys and values are computed again with
        the weights that serve then, and those sample the rest.
        """
        ...

    def score(self, token_ids: IntIds, start: int) -> Scored:
        """Log-probabilities of i32[T] token_ids from `start` (at least 1) on, at temperature 1, for the probe.

        Computed as a call computes them that has the prompt token_ids[:start] and samples the rest: through the prefix
        cache, which is left with the keys of these tokens. Only for when no call is running.
        """
        ...

    def load_weights(
        self, shapes: Mapping[str, tuple[int, ...]], weights: Iterable[tuple[str, object]], weight_version: int
    ) -> None:
        """Takes new weights, one after the other, and forgets every cached key and value.

        Args:
            shapes: of all weights that come, by their name in the model's `state_dict`; together they are every
                parameter that changed. They are checked before anything is changed.
            weights: (name, tensor) pairs, each tensor needed only until the next is asked for.
            weight_version: the version that `weights` are.

        Raises:
            EngineFailedError: calls are running, or a name or shape is wrong: nothing was changed. Or what came is not
                what was announced: the weights are half loaded, and the engine is of no use after that.
        """
        ...

    def differing(self, weights: Iterable[tuple[str, object]]) -> str | None:
        """Returns the name of the first weight that the engine does not hold, bit for bit; None if it holds them all.

        Args:
            weights: (name in the model's `state_dict`, tensor) pairs; compared in the engine's number format.
        """
        ...
