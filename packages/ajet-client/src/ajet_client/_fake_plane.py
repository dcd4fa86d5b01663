"""What `ajet_client.testing.FakeServer` knows and does: episodes, keys, events, a scripted model."""

import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ValidationError

from ajet_client._fake_episode import FakeEpisode
from ajet_client._fake_unions import decide, followed_view, refuse_deciding_alone, refuse_finish, union_view
from ajet_client._fake_views import CAUSE, completion, pool_view, status_view
from ajet_core.config import BatchConfig, Job, ModelConfig
from ajet_core.episode import EpisodeStatus
from ajet_core.errors import (
    ConfigError,
    ConflictError,
    EngineFailedError,
    EpisodeClosedError,
    ForbiddenError,
    KeyRefusedError,
    NotFoundError,
    RequestError,
    UnavailableError,
)
from ajet_core.events import EngineState
from ajet_core.ids import new_attempt_id, new_episode_id, new_group_id
from ajet_core.roles import refuse_rewards, refuse_role, split_key
from ajet_core.status import JanitorView, PoolView
from ajet_core.wire import (
    AbortEpisode,
    Decision,
    EpisodeGrant,
    FinishEpisode,
    Lease,
    OpenEpisode,
    PrepareEpisode,
    Readiness,
)

_ROUTES = {
    r"POST /api/episodes": "open",
    r"GET /api/episodes/\w+": "view",
    r"POST /api/episodes/\w+/prepare": "prepare",
    r"POST /api/episodes/\w+/finish": "finish",
    r"POST /api/episodes/\w+/abort": "abort",
    r"POST /api/episodes/\w+/heartbeat": "heartbeat",
    r"GET /api/unions": "unions",
    r"GET /api/unions/\w+": "union",
    r"POST /api/unions/\w+/decision": "decide",
    r"GET /api/status": "status",
    r"GET /api/janitor": "janitor",
    r"(GET|PUT) /api/job": "job",
    r"POST /api/ready": "ready",
    r"POST /api/start": "start",
    r"POST /api/stop": "stop",
    r"POST /api/shutdown": "shutdown",
    r"GET /healthz": "health",
    r"GET /api/events(\?.*)?": "events",
    r"POST /v1/chat/completions": "chat",
}


_NO_JOB = "no job was set"


@dataclass(frozen=True)
class Answer:
    """What to send back."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def json(cls, value: object, status: int = 200, headers: dict[str, str] | None = None) -> "Answer":
        """Returns an answer of JSON."""
        return cls(json.dumps(value).encode(), status, {"content-type": "application/json", **(headers or {})})

    @classmethod
    def model(cls, value: BaseModel) -> "Answer":
        """Returns an answer of one of our models."""
        return cls(value.model_dump_json().encode(), headers={"content-type": "application/json"})


class Plane:
    """The state of the fake server. One lock makes each request atomic."""

    def __init__(self, reply: Callable[[list[dict[str, Any]]], str], lease_s: float) -> None:
        self.url = "http://fake.invalid"
        self.episodes: dict[str, FakeEpisode] = {}
        self.events: list[BaseModel] = []
        self.state = EngineState.ROLLING
        self.job: Job | None = Job(name="fake", model=ModelConfig(path="fake"), batch=BatchConfig(policy="episodes"))
        self.gone = False
        self.ready: set[str] = set()
        self._reply = reply
        self._lease_s = lease_s
        self._grants: dict[str, EpisodeGrant] = {}
        self._lock = threading.RLock()

    def route(self, method: str, target: str) -> str:
        """Returns the name of a request's route; `unknown` if there is none."""
        line = f"{method} {target}"
        return next((name for pattern, name in _ROUTES.items() if re.fullmatch(pattern, line)), "unknown")

    def act(self, route: str, target: str, key: str | None, body: bytes) -> Answer:
        """Answers one request. Raises the `AjetError` to answer with."""
        if route == "unknown":
            raise NotFoundError(f"no route {target}")
        if route == "chat":  # outside the lock: a scripted model may be slow
            return self._chat(key, json.loads(body))
        with self._lock:
            if target.startswith("/api/episodes/"):
                return self._episode(route, self._find(target.split("/")[3]), key, body)
            return getattr(self, f"_{route}")(target, body)

    def _find(self, episode_id: str) -> FakeEpisode:
        if episode_id not in self.episodes:
            raise NotFoundError(f"no episode {episode_id}")
        return self.episodes[episode_id]

    def _episode(self, route: str, episode: FakeEpisode, key: str | None, body: bytes) -> Answer:
        if route == "view":
            return Answer.model(episode.view())
        if key == f"key_{episode.id}":
            raise ForbiddenError("the agent's key allows inference only")
        if key != f"control_{episode.id}":
            raise KeyRefusedError("not the control key of this episode")
        return getattr(self, f"_{route}")(episode, body)

    def _open(self, target: str, body: bytes) -> Answer:
        want = OpenEpisode.model_validate_json(body)
        if want.request_id not in self._grants:
            self._admit()
            self._grants[want.request_id] = self._grant(want)
        return Answer.model(self._grants[want.request_id])

    def _admit(self) -> None:
        if self.state is EngineState.FAILED:
            raise EngineFailedError(f"the engine failed: {CAUSE}")
        if self.job is None:
            raise UnavailableError(_NO_JOB, retry_after_s=5.0)
        if self.state is not EngineState.ROLLING:
            raise UnavailableError(f"the engine is {self.state}: {CAUSE}", retry_after_s=5.0)

    def _grant(self, want: OpenEpisode) -> EpisodeGrant:
        task_id = want.task_id or json.dumps(want.task, sort_keys=True)[:200]
        group_id = want.group_id or new_group_id()
        episode = FakeEpisode(new_episode_id(), group_id, task_id, want.client_id, want.kind, want.task)
        episode.group_named, episode.weights = want.group_id is not None, want.weights
        episode.source = want.source
        self.episodes[episode.id] = episode
        return EpisodeGrant(
            episode_id=episode.id,
            attempt_id=new_attempt_id(),
            group_id=group_id,
            kind=want.kind,
            base_url=f"{self.url}/v1",
            api_key=f"key_{episode.id}",
            control_key=f"control_{episode.id}",
            model="fake",
            weight_version=want.weights or 0,
            lease_s=self._lease_s,
        )

    def _finish(self, episode: FakeEpisode, body: bytes) -> Answer:
        report = FinishEpisode.model_validate_json(body)
        given = (episode.reward, episode.rewards)
        if episode.status is not EpisodeStatus.FINISHED or given != (report.reward, report.rewards):
            self._refuse_closed(episode)
            refuse_rewards(episode.id, episode.roles, report.rewards)
            refuse_finish(episode.promise, report)
        episode.finish(report)
        return Answer.model(episode.view())

    def _prepare(self, episode: FakeEpisode, body: bytes) -> Answer:
        self._refuse_closed(episode)
        promise = PrepareEpisode.model_validate_json(body)
        refuse_rewards(episode.id, episode.roles, promise.rewards)
        episode.promise = promise
        return Answer.model(episode.view())

    def _unions(self, target: str, body: bytes) -> Answer:
        return Answer.model(followed_view(self.episodes.values()))

    def _union(self, target: str, body: bytes) -> Answer:
        return Answer.model(union_view(target.split("/")[3], self.episodes.values()))

    def _decide(self, target: str, body: bytes) -> Answer:
        secret = Decision.model_validate_json(body).secret
        decide(target.split("/")[3], secret, self.episodes.values())
        return Answer.json([])

    def _abort(self, episode: FakeEpisode, body: bytes) -> Answer:
        if episode.status is not EpisodeStatus.ABORTED:
            self._refuse_closed(episode)
            refuse_deciding_alone(episode.promise)
            episode.status, episode.reason = EpisodeStatus.ABORTED, AbortEpisode.model_validate_json(body).reason
        return Answer.model(episode.view())

    def _heartbeat(self, episode: FakeEpisode, body: bytes) -> Answer:
        self._refuse_closed(episode)
        episode.heartbeats += 1
        return Answer.model(Lease(episode_id=episode.id, lease_s=self._lease_s))

    def _refuse_closed(self, episode: FakeEpisode) -> None:
        if not episode.open:
            raise EpisodeClosedError(
                f"episode {episode.id} is {episode.status} ({episode.reason or 'reward reported'})"
            )

    def _janitor(self, target: str, body: bytes) -> Answer:
        return Answer.model(JanitorView())

    def _status(self, target: str, body: bytes) -> Answer:
        return Answer.model(status_view(self.state, self._pool()))

    def _pool(self) -> PoolView:
        return pool_view(sum(episode.open for episode in self.episodes.values()), sorted(self.ready))

    def _ready(self, target: str, body: bytes) -> Answer:
        said = Readiness.model_validate_json(body)
        if self.job is None or not self.job.batch.asks_clients:
            raise ConflictError("the job's batch policy asks no client, so being ready has no effect")
        if said.ready:
            self.ready.add(said.client_id)
        else:
            self.ready.discard(said.client_id)
        return Answer.model(self._pool())

    def _job(self, target: str, body: bytes) -> Answer:
        if body:
            self.job = _job(body)
        if self.job is None:
            raise NotFoundError(_NO_JOB)
        return Answer.model(self.job)

    def _start(self, target: str, body: bytes) -> Answer:
        self.state = EngineState.ROLLING
        return Answer.json({})

    def _stop(self, target: str, body: bytes) -> Answer:
        self.state = EngineState.OFFLINE
        return Answer.json({})

    def _shutdown(self, target: str, body: bytes) -> Answer:
        self.gone = True
        return Answer.json({}, 202)

    def _health(self, target: str, body: bytes) -> Answer:
        return Answer.json({})

    def _events(self, target: str, body: bytes) -> Answer:
        after = int(target.partition("after=")[2] or 0)
        new = [event for event in self.events if getattr(event, "id", 0) > after]
        lines = [f"id: {getattr(event, 'id', 0)}\ndata: {event.model_dump_json()}\n\n" for event in new]
        return Answer("".join(lines).encode(), headers={"content-type": "text/event-stream"})

    def _chat(self, key: str | None, request: dict[str, Any]) -> Answer:
        api_key, role = split_key(key or "")
        episode = self.episodes.get(api_key.removeprefix("key_"))
        if episode is None or not episode.open or episode.promise is not None:
            raise KeyRefusedError("the key belongs to no open episode")
        if request.get("stream"):
            raise RequestError("the fake server does not stream", field="stream")
        refuse_role(episode.id, episode.roles, role)
        episode.calls.append(request)
        episode.roles.append(role)
        return Answer.json(completion(self._reply(request["messages"])))


def _job(body: bytes) -> Job:
    try:
        return Job.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(first["msg"], field=".".join(str(part) for part in first["loc"]) or None) from None
