"""One call inside the engine, from its arrival to its completion."""

import hashlib
import struct
from dataclasses import dataclass, field

import numpy as np

from ajet_server.engines.base import Completion, FinishReason, GenerationRequest, IntIds
from ajet_server.engines.constraint import Constraint
from ajet_server.engines.sampler import Draw
from ajet_server.worker.protocol import Sampled, Sampling

_SEED_BITS = (1 << 64) - 1
_ID, _LOGPROB = struct.Struct("<i"), struct.Struct("<f")


@dataclass(slots=True, eq=False)
class Call:
    """A call and how far it is.

    Attributes:
        rng: its own stream of uniforms, one per token, so that its tokens do not depend on who else is running.
        tokens: i32[P + max_tokens]; the first `known` are prompt and sampled ids.
        known: ids there are.
        computed: ids whose keys and values are in the slot; 0 <= computed <= known.
        cached: prompt ids whose keys and values were copied instead of computed before its first token was sampled.
        constraint: what may come next, if a schema says so.
        started: it knows where its beginning comes from; until then its slot is empty.
        slot: place in the slot store; -1 while it waits.
        versions: (first token, weight version) of each run of sampled tokens that weights of one version sampled.
    """

    request: GenerationRequest
    rng: np.random.Generator
    tokens: IntIds
    known: int
    constraint: Constraint | None = None
    computed: int = 0
    cached: int = 0
    started: bool = False
    slot: int = -1
    draws: list[Draw] = field(default_factory=list[Draw])
    versions: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    @property
    def request_id(self) -> str:
        """The caller's name for it."""
        return self.request.request_id

    @property
    def sampling(self) -> Sampling:
        """How to sample."""
        return self.request.sampling

    @property
    def prompt(self) -> IntIds:
        """i32[P]."""
        return self.request.prompt_ids

    @property
    def ids(self) -> IntIds:
        """i32[known], the prompt and the ids sampled so far."""
        return self.tokens[: self.known]

    @property
    def completion(self) -> IntIds:
        """i32[C], the ids sampled so far."""
        return self.tokens[len(self.prompt) : self.known]

    @property
    def uncomputed(self) -> int:
        """Known ids that still need a forward pass; the call samples when none is left."""
        return self.known - self.computed

    def begin(self, reused: int) -> None:
        """Begins to compute, after the keys and values of its first `reused` ids were copied into its slot."""
        self.started, self.computed = True, reused
        if not self.draws:
            self.cached = reused

    def pause(self) -> None:
        """Leaves its slot: what was computed is lost, what was sampled stays."""
        self.slot, self.started, self.computed = -1, False, 0

    def append(self, draw: Draw, weight_version: int) -> None:
        """Takes a token that weights of this version sampled."""
        if not self.versions or self.versions[-1][1] != weight_version:
            self.versions.append((len(self.draws), weight_version))
        self.tokens[self.known] = draw.token
        self.known += 1
        self.draws.append(draw)

    def newest(self) -> Sampled:
        """Returns the last sampled token, for the stream."""
        draw = self.draws[-1]
        tops = [draw.top] if self.sampling.top_logprobs else []
        return Sampled(self.request_id, len(self.draws) - 1, _ID.pack(draw.token), _LOGPROB.pack(draw.logprob), tops)

    def complete(self, reason: FinishReason, stop: str | None) -> Completion:
        """Returns what it sampled."""
        return Completion(
            request_id=self.request_id,
            token_ids=self.completion.copy(),
            logprobs=np.array([draw.logprob for draw in self.draws], np.float32),
            finish_reason=reason,
            stop=stop,
            weight_version=self.versions[0][1],
            cached_tokens=self.cached,
            top_logprobs=[draw.top for draw in self.draws] if self.sampling.top_logprobs else [],
            version_spans=tuple(self.versions) if len(self.versions) > 1 else (),
        )


def new_call(request: GenerationRequest, engine_seed: int, constraint: Constraint | None = None) -> Call:
    """Makes a call; without a seed of its own, its stream follows from the engine's seed and its request id.

    Request ids are never used twice, not after a restart either, and are recorded with what was sampled. So no two
    calls of a group can sample the same numbers, and each can be sampled again from the record. A number that counts
    calls would begin anew with each engine.

    numpy's generator, not torch's: it takes seeds of any width (torch's CPU generator uses 32 bits), and the uniform
    is drawn on the host, so a seed means the same on every device.
    """
    length = len(request.prompt_ids)
    tokens = np.zeros(length + request.sampling.max_tokens, np.int32)
    tokens[:length] = request.prompt_ids
    seed = request.sampling.seed
    entropy = (0, _digest(engine_seed, request.request_id)) if seed is None else (1, seed & _SEED_BITS)
    return Call(request, np.random.default_rng(entropy), tokens, length, constraint)


def _digest(engine_seed: int, request_id: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{engine_seed} {request_id}".encode()).digest())
