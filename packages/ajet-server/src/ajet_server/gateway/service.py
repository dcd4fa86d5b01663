"""Serves one call of an agent: REQUEST and CAPTURE of the six stages.

Contract 1 (capture): what the engine was given and what it sampled is recorded, by id, before the agent sees an answer.
Nothing is tokenized a second time. A result whose episode closed meanwhile is fenced off by the ledger.
"""

import asyncio
import json
import time

import numpy as np
import numpy.typing as npt

from ajet_core.config import Job
from ajet_core.episode import EpisodeKind
from ajet_core.errors import EpisodeClosedError, NotFoundError, PromptTooLongError, RequestError
from ajet_core.ids import new_call_id
from ajet_server.capture import records
from ajet_server.capture.ledger import Ledger, to_the_end
from ajet_server.capture.records import CallRecord
from ajet_server.conductor import Conductor
from ajet_server.episodes.book import OpenState
from ajet_server.episodes.lifecycle import Episodes
from ajet_server.gateway.render import ChatRenderer
from ajet_server.gateway.request import ChatRequest, ChatResult
from ajet_server.observe.metrics import Metrics
from ajet_server.worker import protocol

_RENDERED_AT_ONCE = 20_000
"""Characters. Longer conversations are rendered in a thread, so that others are answered meanwhile."""


class Gateway:
    """Calls of open episodes, over one engine."""

    def __init__(
        self,
        job: Job,
        served_name: str,
        renderer: ChatRenderer,
        conductor: Conductor,
        episodes: Episodes,
        ledger: Ledger,
        metrics: Metrics,
    ) -> None:
        self._job = job
        self._renderer = renderer
        self._conductor = conductor
        self._episodes = episodes
        self._ledger = ledger
        self._metrics = metrics
        self.served_name = served_name

    async def chat(self, state: OpenState, request: ChatRequest) -> ChatResult:
        """Generates, records and returns one completion.

        Raises:
            NotFoundError: the model is not the one that is served.
            RequestError: the sampling cannot be trained on, or the prompt is too long.
            UnavailableError: the deadline passed while the engine was busy or its weights moved; a retry makes sense.
            EpisodeClosedError: the episode closed while the call ran.
        """
        started = time.monotonic()
        self._check_model(request)
        if state.record.kind is EpisodeKind.TRAIN:
            check_trainable(request)
        self._conductor.require_serving()
        prompt = await self._render(request)
        sampling = self._sampling(request, len(prompt), state.record.kind)
        call_id, seq = new_call_id(), state.next_seq
        state.next_seq += 1
        state.in_flight += 1
        try:
            message = protocol.Generate(call_id, prompt.astype("<i4", copy=False).tobytes(), sampling)
            generated = await self._generate(state, message)
            result = self._result(request, prompt, call_id, generated)
            await to_the_end(self._record(state, seq, message, generated, request, result))
        finally:
            state.in_flight -= 1
            self._episodes.renew(state)
        self._metrics.call_done(time.monotonic() - started, len(prompt), len(result.token_ids), result.cached_tokens)
        return result

    async def _render(self, request: ChatRequest) -> npt.NDArray[np.int32]:
        size = sum(len(message["content"]) for message in request.messages)
        if size < _RENDERED_AT_ONCE:
            return self._renderer.prompt_ids(request.messages)
        return await asyncio.to_thread(self._renderer.prompt_ids, request.messages)

    async def _generate(self, state: OpenState, message: protocol.Generate) -> protocol.Generated:
        """Generates, or stops as soon as the episode is closed: nobody could use the answer."""
        work = self._conductor.supervisor.generate(message, self._job.limits.request_timeout_s)
        call, closed = asyncio.create_task(work), asyncio.create_task(state.closed.wait())
        try:
            await asyncio.wait({call, closed}, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                raise EpisodeClosedError(
                    f"episode {state.record.id} was closed while the call ran; nothing was recorded"
                )
            return call.result()
        finally:
            call.cancel()
            closed.cancel()
            await asyncio.gather(call, closed, return_exceptions=True)

    def _check_model(self, request: ChatRequest) -> None:
        if request.model != self.served_name:
            raise NotFoundError(
                f"model: {request.model!r} is not served here; send {self.served_name!r}", field="model"
            )

    def _longest(self, kind: EpisodeKind) -> int | None:
        """Bound on prompt + completion: the model's and, for what will be trained, that of a pack."""
        loaded = self._conductor.loaded
        longest = loaded.max_model_len if loaded else self._job.engine.max_model_len
        if kind is EpisodeKind.EVAL:
            return longest
        return min(longest or self._job.trainer.pack_tokens, self._job.trainer.pack_tokens)

    def _sampling(self, request: ChatRequest, prompt_tokens: int, kind: EpisodeKind) -> protocol.Sampling:
        longest = self._longest(kind)
        bound = self._job.limits.max_completion_tokens
        if request.max_tokens is not None and request.max_tokens > bound:
            raise RequestError(
                f"max_tokens: {request.max_tokens} exceeds limits.max_completion_tokens={bound}", field="max_tokens"
            )
        max_tokens = request.max_tokens
        if longest is not None:
            max_tokens = _fit(prompt_tokens, request.max_tokens, bound, longest)
        return protocol.Sampling(
            max_tokens=max_tokens or bound,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            stop=request.stop,
            seed=request.seed,
            top_logprobs=request.top_logprobs if request.logprobs else 0,
        )

    def _result(
        self, request: ChatRequest, prompt: npt.NDArray[np.int32], call_id: str, generated: protocol.Generated
    ) -> ChatResult:
        ids: list[int] = np.frombuffer(generated.token_ids, dtype="<i4").tolist()
        text = self._renderer.text(ids)
        if generated.stop is not None:
            text = text[: text.find(generated.stop)] if generated.stop in text else text
        wanted = request.logprobs
        return ChatResult(
            call_id=call_id,
            text=text,
            token_ids=ids,
            tokens=[self._renderer.token(item) for item in ids] if wanted else [],
            logprobs=np.frombuffer(generated.logprobs, dtype="<f4").tolist() if wanted else [],
            top_logprobs=[
                [(self._renderer.token(item), value) for item, value in pairs] for pairs in generated.top_logprobs
            ],
            finish_reason=generated.finish_reason,
            prompt_tokens=len(prompt),
            cached_tokens=generated.cached_tokens,
            weight_version=generated.weight_version,
        )

    async def _record(
        self,
        state: OpenState,
        seq: int,
        message: protocol.Generate,
        generated: protocol.Generated,
        request: ChatRequest,
        result: ChatResult,
    ) -> None:
        call = CallRecord(
            id=message.request_id,
            episode_id=state.record.id,
            seq=seq,
            prompt_ids=message.prompt_ids,
            completion_ids=generated.token_ids,
            logprobs=generated.logprobs,
            sampling=json.dumps({name: getattr(message.sampling, name) for name in message.sampling.__struct_fields__}),
            temperature=message.sampling.temperature,
            weight_version=generated.weight_version,
            finish_reason=generated.finish_reason,
            cached_tokens=generated.cached_tokens,
            messages=json.dumps(request.messages, ensure_ascii=False),
            text=result.text,
        )
        await self._ledger.write(lambda db: records.insert_call(db, call))
        state.recorded += 1
        oldest = generated.weight_version if state.oldest_version is None else state.oldest_version
        state.oldest_version = min(oldest, generated.weight_version)


def check_trainable(request: ChatRequest) -> None:
    """Refuses sampling whose log-probabilities the update could not reproduce.

    Greedy tokens have no probability to weigh, and a distribution cut by top-p or top-k is not the one that the trainer
    computes. Temperature is recorded and reproduced, so any positive one is fine.

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


def _fit(prompt_tokens: int, wanted: int | None, bound: int, longest: int) -> int:
    room = longest - prompt_tokens
    if room < 1 or (wanted is not None and wanted > room):
        asked = f" and max_tokens={wanted}" if wanted else ""
        raise PromptTooLongError(
            f"messages: the prompt has {prompt_tokens} tokens{asked}, the context is {longest}; shorten it",
            field="messages",
        )
    return wanted or min(bound, room)
