"""One request, from messages to a durable answer: REQUEST and CAPTURE of the six stages.

Contract 1 (capture): what the engine was given and what it sampled is recorded, by id, before the agent sees the end of
an answer. Nothing is tokenized a second time. A result whose episode closed meanwhile is fenced off by the ledger.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from ajet_core.config import Job
from ajet_core.episode import EpisodeKind
from ajet_core.errors import EpisodeClosedError
from ajet_core.ids import new_call_id
from ajet_server.capture.calls import MOST_AT_ONCE, CallRecord, WholeCall, insert_calls
from ajet_server.capture.ledger import Ledger
from ajet_server.capture.writes import Bulk
from ajet_server.conductor import Conductor
from ajet_server.episodes.book import OpenState
from ajet_server.episodes.lifecycle import Episodes
from ajet_server.gateway.choice import ChoiceBuilder
from ajet_server.gateway.prompts import Prompt, Prompts
from ajet_server.gateway.recorder import call_records, generated_of
from ajet_server.gateway.request import Answer, ChatRequest, Choice, Started
from ajet_server.gateway.runs import Emit, announced
from ajet_server.gateway.sampling import Room, sampling_of
from ajet_server.gateway.session import Claim, Origin, Session
from ajet_server.gateway.waiting import unless
from ajet_server.observe.metrics import Metrics
from ajet_server.worker import protocol

OnSampled = Callable[[protocol.Sampled], None]


class Answering:
    """Answers requests that may be answered, over one engine."""

    def __init__(
        self,
        job: Job,
        prompts: Prompts,
        conductor: Conductor,
        episodes: Episodes,
        ledger: Ledger,
        metrics: Metrics,
    ) -> None:
        self._job = job
        self._prompts = prompts
        self._conductor = conductor
        self._episodes = episodes
        self._ledger = ledger
        self._metrics = metrics

    async def serve(
        self, claim: Claim, session: Session, request: ChatRequest, origin: Origin, emit: Emit | None
    ) -> Answer:
        """Generates, records and returns an answer.

        Args:
            claim: on the episode; given back when the calls are recorded.
            session: the episode's memory.
            request: what was asked.
            origin: how.
            emit: told as it grows; None if nobody listens before the end.

        Raises:
            RequestError: the template refuses the messages, or the engine the sampling.
            PromptTooLongError: the prompt leaves no room for an answer.
            BudgetError: the episode has no token left.
            UnavailableError: the deadline passed while the engine was busy or its weights moved, or the tokens that are
                left are reserved for running calls; a retry makes sense.
            EpisodeClosedError: the episode closed while the call ran.
        """
        began, state = time.monotonic(), claim.state
        prompt = await self._prompts.make(session.continuity, request)
        most = self._room(state).max_tokens(request, prompt.ids.size)
        started = _started(new_call_id(), time.time(), request, prompt)
        call_ids = [started.id, *(new_call_id() for _ in range(1, request.n))]
        first_seq = state.next_seq
        state.next_seq += request.n
        claim.reserve(most * request.n)
        try:
            tell = None if emit is None else announced(emit, started)
            made = await self._sample(state, request, prompt, call_ids, most, tell)
            choices, generated = [choice for choice, _ in made], [one for _, one in made]
            records = call_records(
                state.record.id, first_seq, request, origin, prompt, most, started, choices, generated
            )
            await self._ledger.write(
                Bulk(insert_calls, records, MOST_AT_ONCE), lambda _: _remember(claim, session, prompt, choices, records)
            )
        finally:
            self._episodes.renew(state)
        answer = _answer(started, choices, generated)
        self._metrics.call_done(
            time.monotonic() - began, answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens
        )
        later = [one for one in generated if one.version_spans]
        self._metrics.continued(sum(len(one.token_ids) // 4 - one.version_spans[1][0] for one in later))
        self._metrics.malformed(sum(choice.malformed_tool_calls for choice in choices))
        return answer

    async def replay(self, request: ChatRequest, calls: Sequence[WholeCall], emit: Emit | None) -> Answer:
        """Gives a recorded answer again, read from its ids as it was the first time.

        Args:
            request: equal to the one that it answered.
            calls: its choices.
            emit: told everything at once; None if nobody listens.
        """
        prompt = self._prompts.recorded(calls[0], request)
        started = _started(calls[0].record.id, calls[0].record.created, request, prompt)
        tell = None if emit is None else announced(emit, started)
        choices: list[Choice] = []
        generated = [generated_of(call) for call in calls]
        for call, one in zip(calls, generated, strict=True):
            delta, choice = self._builder(request, prompt, call.record.choice, call.record.id).finish(one)
            choices.append(choice)
            if tell is not None:
                tell(delta)
        self._metrics.replayed()
        return _answer(started, choices, generated)

    async def _sample(
        self,
        state: OpenState,
        request: ChatRequest,
        prompt: Prompt,
        call_ids: Sequence[str],
        most: int,
        emit: Emit | None,
    ) -> list[tuple[Choice, protocol.Generated]]:
        """All choices at once. The first that fails ends the others."""
        work = [self._one(state, request, prompt, index, name, most, emit) for index, name in enumerate(call_ids)]
        if len(work) == 1:
            return [await work[0]]
        tasks = [asyncio.create_task(one) for one in work]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(
        self,
        state: OpenState,
        request: ChatRequest,
        prompt: Prompt,
        index: int,
        call_id: str,
        most: int,
        emit: Emit | None,
    ) -> tuple[Choice, protocol.Generated]:
        builder = self._builder(request, prompt, index, call_id)
        sampling = sampling_of(request, most, index)
        message = protocol.Generate(
            call_id,
            prompt.engine_ids,
            sampling,
            stream=emit is not None,
            weights=state.record.weights,
            evaluation=state.record.kind is EpisodeKind.EVAL,
        )
        on_sampled: OnSampled | None = None
        if emit is not None:
            on_sampled = lambda sampled: emit(builder.push(sampled))  # noqa: E731 - mirrors its type
        generated = await self._generate(state, message, on_sampled)
        delta, choice = builder.finish(generated)
        if emit is not None:
            emit(delta)
        return choice, generated

    async def _generate(
        self, state: OpenState, message: protocol.Generate, on_sampled: OnSampled | None
    ) -> protocol.Generated:
        """Generates, or stops as soon as the episode is closed: nobody could use the answer."""
        work = self._conductor.supervisor.generate(message, self._job.limits.request_timeout_s, on_sampled)
        generated = await unless(state.closed, work)
        if generated is None:
            raise EpisodeClosedError(f"episode {state.record.id} was closed while the call ran; nothing was recorded")
        return generated

    def _builder(self, request: ChatRequest, prompt: Prompt, index: int, call_id: str) -> ChoiceBuilder:
        reader = self._prompts.reader(request, prompt, call_id)
        return ChoiceBuilder(index, call_id, reader, self._prompts.renderer if request.logprobs else None)

    def _room(self, state: OpenState) -> Room:
        limits = self._job.limits
        left = None
        if limits.max_episode_tokens is not None:
            left = limits.max_episode_tokens - state.sampled
        return Room(self._longest(state.record.kind), limits.max_completion_tokens, left, state.reserved)

    def _longest(self, kind: EpisodeKind) -> int | None:
        """Bound on prompt + completion: the model's and, for what will be trained, that of a pack."""
        loaded = self._conductor.loaded
        longest = loaded.max_model_len if loaded else self._job.engine.max_model_len
        if kind is EpisodeKind.EVAL:
            return longest
        return min(longest or self._job.trainer.pack_tokens, self._job.trainer.pack_tokens)


def _remember(claim: Claim, session: Session, prompt: Prompt, choices: list[Choice], records: list[CallRecord]) -> None:
    """Makes recorded calls known to later ones, and counts them. In one go, so that no limit counts a call twice."""
    state = claim.state
    for choice in choices:
        if prompt.prepared is not None:
            session.continuity.record(choice.call_id, prompt.prepared, choice.token_ids, choice.message())
    versions = [record.weight_version for record in records]
    claim.release()
    state.recorded += len(records)
    state.roles.add(records[0].role)
    state.sampled += sum(len(choice.token_ids) for choice in choices)
    state.oldest_version = min(versions if state.oldest_version is None else [*versions, state.oldest_version])


def _started(answer_id: str, created: float, request: ChatRequest, prompt: Prompt) -> Started:
    # As a list only for those who ask: of a long prompt it costs more than all else that is done with it.
    ids: list[int] = prompt.ids.tolist() if request.return_token_ids else []
    return Started(answer_id, int(created), request.model, prompt.ids.size, ids)


def _answer(started: Started, choices: list[Choice], generated: list[protocol.Generated]) -> Answer:
    return Answer(
        id=started.id,
        created=started.created,
        model=started.model,
        choices=tuple(choices),
        prompt_tokens=started.prompt_tokens,
        prompt_ids=started.prompt_ids,
        cached_tokens=generated[0].cached_tokens,
        weight_version=min(one.weight_version for one in generated),
    )
