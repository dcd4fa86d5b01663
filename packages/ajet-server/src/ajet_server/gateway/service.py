"""The door of the gateway: who may ask what, and what became of it before."""

import json
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from ajet_core.config import Job
from ajet_core.episode import EpisodeKind
from ajet_core.errors import BudgetError, EpisodeClosedError, NotFoundError
from ajet_core.roles import refuse_role
from ajet_server.capture.calls import WholeCall, answers_to, whole_calls
from ajet_server.capture.ledger import Ledger
from ajet_server.conductor import Conductor
from ajet_server.episodes.book import OpenState
from ajet_server.gateway.answering import Answering
from ajet_server.gateway.prompts import Prompts, past_call
from ajet_server.gateway.request import Answer, ChatRequest, Message
from ajet_server.gateway.runs import Run
from ajet_server.gateway.sampling import check_trainable
from ajet_server.gateway.session import Claim, Origin, Session
from ajet_server.worker.json_schema import check_json_schema


class Gateway:
    """Calls of open episodes, over one engine."""

    def __init__(
        self,
        job: Job,
        served_name: str,
        prompts: Prompts,
        conductor: Conductor,
        ledger: Ledger,
        answering: Answering,
    ) -> None:
        self._job = job
        self._prompts = prompts
        self._conductor = conductor
        self._ledger = ledger
        self._answering = answering
        self._sessions: WeakKeyDictionary[OpenState, Session] = WeakKeyDictionary()
        self.served_name = served_name

    @property
    def thinks(self) -> bool:
        """Whether the model's template knows of thinking."""
        return self._prompts.thinks

    async def run(self, state: OpenState, request: ChatRequest, origin: Origin, *, stream: bool = False) -> Run:
        """Begins to answer a request, or joins the answer that its earlier try gets.

        A retry is answered by the call that its first try recorded, so nothing is sampled or trained twice.

        Raises (here, or from the run: see `Answering.serve`):
            NotFoundError: the model is not the one that is served.
            RequestError: the sampling cannot be trained on; or other calls of the episode named roles and this one does
                not, or the other way round.
            BudgetError: the episode has used up its calls.
            EpisodeClosedError: the episode closed meanwhile.
            UnavailableError: the engine does not run.
        """
        self._check(state, request)
        refuse_role(state.record.id, state.roles, origin.role)
        session = self._session(state)
        if not origin.retry:
            session.asked[origin.digest] += 1
        else:
            running = await _first_try(session, origin)
            if running is not None:
                return running
            lost = self._lost_answer(state, session, origin)
            if lost:
                return Run(lambda emit: self._answering.replay(request, lost, emit if stream else None), _nothing)
        self._conductor.require_serving()
        _refuse_closed(state)  # or prepared, while its first try was awaited
        self._check_budget(state, request)
        claim = Claim(state, request.n)

        def over(run: Run) -> None:
            claim.release()
            session.forget(origin, run)

        run = Run(lambda emit: self._answering.serve(claim, session, request, origin, emit if stream else None), over)
        session.running.setdefault(origin.digest, run)
        return run

    def delivered(self, state: OpenState, answer: Answer) -> None:
        """Notes that an answer was sent to the end: a later equal request, tried again too, asks for another."""
        session = self._sessions.get(state)
        if session is not None:
            session.delivered.add(answer.id)

    def recall(self, state: OpenState, answer_id: str) -> list[Message]:
        """Returns the conversation that ended with an answer of this episode, the answer included.

        Raises:
            NotFoundError: the episode has no such answer.
        """
        for call in self._calls(state):
            if call.record.answer_id == answer_id and call.messages:
                own = 1 if json.loads(call.record.labels).get("instructions") else 0  # they do not carry over
                return [*call.messages[own:], call.response]
        raise NotFoundError(
            f"previous_response_id: episode {state.record.id} has no answer {answer_id!r}", field="previous_response_id"
        )

    async def count_tokens(self, state: OpenState, request: ChatRequest) -> int:
        """Returns how many tokens the prompt of a request would have."""
        self._check_model(request)
        return (await self._prompts.make(self._session(state).continuity, request)).ids.size

    def _check(self, state: OpenState, request: ChatRequest) -> None:
        _refuse_closed(state)  # since a moment ago: the body was on its way
        self._check_model(request)
        if state.record.kind is EpisodeKind.TRAIN:
            check_trainable(request)
        elif request.response_format is not None and request.response_format.schema is not None:
            check_json_schema(request.response_format.schema)

    def _check_model(self, request: ChatRequest) -> None:
        if request.model != self.served_name:
            raise NotFoundError(
                f"model: {request.model!r} is not served here; send {self.served_name!r}", field="model"
            )

    def _check_budget(self, state: OpenState, request: ChatRequest) -> None:
        most = self._job.limits.max_episode_calls
        if most is not None and state.recorded + state.in_flight + request.n > most:
            raise BudgetError(f"the episode has made its limits.max_episode_calls={most}; report its reward")

    def _session(self, state: OpenState) -> Session:
        """The gateway's memory of an episode; after a restart it is read back from the ledger."""
        session = self._sessions.get(state)
        if session is None:
            continuity = self._prompts.continuity()
            if state.recorded:
                calls = map(past_call, self._calls(state))
                continuity.restore(past for past in calls if past is not None)
            session = self._sessions[state] = Session(continuity)
        return session

    def _lost_answer(self, state: OpenState, session: Session, origin: Origin) -> Sequence[WholeCall]:
        """The choices of the newest recorded answer to the same request that did not arrive, as far as is known.

        One that was sent to the end may be lost too. It is if no equal request is still without its answer: then this
        retry has to be of one that was answered.
        """
        ids = self._ledger.read_now(lambda db: answers_to(db, state.record.id, origin.digest))
        lost = next((answer_id for answer_id in reversed(ids) if answer_id not in session.delivered), None)
        if lost is None and ids and len(ids) >= session.asked[origin.digest]:
            lost = ids[-1]
        return [] if lost is None else [call for call in self._calls(state) if call.record.answer_id == lost]

    def _calls(self, state: OpenState) -> list[WholeCall]:
        return self._ledger.read_now(lambda db: whole_calls(db, state.record.id))


def _refuse_closed(state: OpenState) -> None:
    if not state.takes_calls:
        raise EpisodeClosedError(f"episode {state.record.id} is closed; its API key is refused. Open a new episode")


def _nothing(run: Run) -> None:
    """Of a replay nobody needs to know that it is over."""


async def _first_try(session: Session, origin: Origin) -> Run | None:
    """The run of an equal request that goes on. One that was given up may still be recorded, so its end is awaited."""
    while (running := session.running.get(origin.digest)) is not None and running.given_up:
        await running.over()
    return running
