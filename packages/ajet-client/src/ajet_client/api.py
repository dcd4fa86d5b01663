"""The control plane's calls, each as a plan: which request to send, for how long to retry, how to read the answer."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pydantic import JsonValue

from ajet_client.bodies import build, dump, finish_body, read
from ajet_client.clock import Clock
from ajet_client.plans import Broken, Pause, Plan, Reply, Request, ask
from ajet_client.retry import once, persist
from ajet_core.config import Job
from ajet_core.errors import AjetError, EngineFailedError, UnavailableError
from ajet_core.events import EngineState
from ajet_core.ids import new_client_id, new_request_id
from ajet_core.wire import (
    AbortEpisode,
    Decides,
    Decision,
    EpisodeGrant,
    EpisodeView,
    FinishEpisode,
    FollowedUnion,
    FollowedView,
    Follows,
    JanitorView,
    Lease,
    OpenEpisode,
    PoolView,
    PrepareEpisode,
    Readiness,
    StatusView,
    UnionView,
)

_HOLD_S = 10.0
"""How long a server is asked to hold an opening, seconds: short enough for every proxy, and for a Ctrl-C."""
_GONE_POLL_S = 0.1
"""How often a server that was told to end is asked whether it still answers, seconds."""
_LEAST_S = 1.0
"""The least time to give an answer, however little is left, seconds."""
_ANSWER_S = 30.0
"""How long an answer may take beyond that, seconds."""
_ABORT_PATIENCE_S = 10.0
"""An abort is not worth a long wait, seconds: an episode that nobody renews expires by itself."""
_WITHDRAW_S = 2.0
"""How long a stopped run waits to learn whether a cut opening was one, seconds."""
POLL_S = 0.5
"""How often a server is asked for what it does not announce, seconds."""


class Api:
    """Makes plans.

    Args:
        token: the client token or the admin token, if the server wants one.
        client_id: name of this client in the server's status. By default a random one.
        timeout_s: patience with everything except openings and reports of a reward, seconds.
        report_timeout_s: patience with the report of a reward, seconds.
        clock: tells the time.
    """

    def __init__(
        self, token: str | None, client_id: str | None, timeout_s: float, report_timeout_s: float, clock: Clock
    ) -> None:
        self._token = token.strip() if token else None  # read from a file, it ends with a line
        self.client_id = client_id or new_client_id()
        self._timeout_s = timeout_s
        self._report_timeout_s = report_timeout_s
        self.clock = clock

    def status(self) -> Plan[StatusView]:
        """Reads the server's status."""
        reply = yield from self._call("reading the status", "GET", "/api/status")
        return read(StatusView, reply)

    def janitor(self) -> Plan[JanitorView]:
        """Reads what the server's janitor did."""
        reply = yield from self._call("asking the janitor", "GET", "/api/janitor")
        return read(JanitorView, reply)

    def wait_until_serving(self, timeout_s: float) -> Plan[StatusView]:
        """Polls until the state is `rolling`."""
        end = self.clock.now() + timeout_s
        while True:
            left_s = max(0.0, end - self.clock.now())
            status = read(StatusView, (yield from self._call("waiting for the server", "GET", "/api/status", left_s)))
            if status.state == EngineState.ROLLING:
                return status
            _refuse_hopeless(status, timeout_s, left_s)
            yield Pause(POLL_S)

    def start(self) -> Plan[None]:
        """Starts the engine."""
        yield from self._call("starting the engine", "POST", "/api/start")

    def stop(self) -> Plan[None]:
        """Stops the engine."""
        yield from self._call("stopping the engine", "POST", "/api/stop")

    def shutdown(self, timeout_s: float) -> Plan[None]:
        """Ends the server process and waits until nobody listens any more.

        Only a refused connection says that. An ending server may cut a connection, or be too busy to answer in time.
        """
        end = self.clock.now() + timeout_s
        yield from once(self._request("POST", "/api/shutdown", timeout_s=max(_LEAST_S, min(_ANSWER_S, timeout_s))))
        while True:
            left_s = end - self.clock.now()
            probe = self._request("GET", "/healthz", timeout_s=max(_LEAST_S, min(_ANSWER_S, left_s)))
            outcome = yield from ask(probe)
            if isinstance(outcome, Broken) and outcome.refused:
                return
            if left_s <= 0:
                seen = "it still answers" if isinstance(outcome, Reply) else outcome.reason
                raise UnavailableError(f"the server is not gone {timeout_s:g} s after it was told to end: {seen}")
            yield Pause(_GONE_POLL_S)

    def job(self, patience_s: float | None = None) -> Plan[Job]:
        """Reads the job. Raises `NotFoundError` if the server has none."""
        reply = yield from self._call("reading the job", "GET", "/api/job", patience_s)
        return read(Job, reply)

    def set_job(self, job: Job | Mapping[str, Any]) -> Plan[None]:
        """Replaces the job. A mapping is sent as it is: the server names the field that is wrong."""
        body = dump(job) if isinstance(job, Job) else json.dumps(dict(job)).encode()
        yield from self._call("setting the job", "PUT", "/api/job", body=body)

    def ready(self, ready: bool) -> Plan[PoolView]:
        """Agrees to an update, or takes it back."""
        body = dump(build(Readiness, client_id=self.client_id, ready=ready))
        return read(PoolView, (yield from self._call("agreeing to an update", "POST", "/api/ready", body=body)))

    def view(self, episode_id: str) -> Plan[EpisodeView]:
        """Reads what the server knows of an episode."""
        reply = yield from self._call(f"reading {episode_id}", "GET", f"/api/episodes/{episode_id}")
        return read(EpisodeView, reply)

    def opening(
        self,
        *,
        task: JsonValue,
        kind: str,
        task_id: str | None,
        group_id: str | None,
        weights: int | None = None,
        source: str | None = None,
    ) -> OpenEpisode:
        """Returns what to ask for. Its request id is one episode's, so all of it is sent again as it is."""
        return build(
            OpenEpisode,
            request_id=new_request_id(),
            kind=kind,
            task=task,
            task_id=task_id,
            group_id=group_id,
            client_id=self.client_id,
            weights=weights,
            source=source,
        )

    def open(self, want: OpenEpisode, patience_s: float) -> Plan[EpisodeGrant]:
        """Opens an episode. All tries carry one request id, so that a lost answer costs nothing."""

        def ask(left_s: float) -> Request:
            hold_s = min(_HOLD_S, left_s)
            return self._open_request(want, hold_s, hold_s + _ANSWER_S)

        reply = yield from persist("opening an episode", ask, patience_s, self.clock)
        return read(EpisodeGrant, reply)

    def withdraw(self, want: OpenEpisode, reason: str) -> Plan[None]:
        """Takes back an opening whose answer was cut: the server may have opened it, and would keep it for a lease.

        Asks once more, without waiting, and aborts what comes. Trouble is left to the lease.
        """
        with suppress(AjetError):
            reply = yield from once(self._open_request(want, 0.0, _WITHDRAW_S))
            yield from self.abort(read(EpisodeGrant, reply), reason)

    def _open_request(self, want: OpenEpisode, hold_s: float, timeout_s: float) -> Request:
        body = dump(want.model_copy(update={"wait_s": hold_s}))
        return self._request("POST", "/api/episodes", body, timeout_s=timeout_s)

    def finish(self, grant: EpisodeGrant, reward: float, metrics: Mapping[str, float]) -> Plan[EpisodeView]:
        """Reports the reward."""
        body = dump(finish_body(reward, metrics))
        return (yield from self._close(grant, "finish", body, self._report_timeout_s))

    def prepare(
        self, grant: EpisodeGrant, report: FinishEpisode, union_id: str, part: Decides | Follows
    ) -> Plan[EpisodeView]:
        """Promises the reward, for a union."""
        body = dump(PrepareEpisode(reward=report.reward, metrics=report.metrics, union_id=union_id, part=part))
        return (yield from self._close(grant, "prepare", body, self._report_timeout_s))

    def decide(self, union_id: str, secret: str) -> Plan[None]:
        """Brings a decision to the episodes that follow a union."""
        path, body = f"/api/unions/{union_id}/decision", dump(Decision(secret=secret))
        yield from self._call(f"deciding union {union_id}", "POST", path, self._report_timeout_s, body)

    def union(self, union_id: str) -> Plan[UnionView]:
        """Reads what the server decided for a union. Raises `NotFoundError` if it does not decide for it."""
        reply = yield from self._call(f"reading union {union_id}", "GET", f"/api/unions/{union_id}")
        return read(UnionView, reply)

    def followed(self) -> Plan[list[FollowedUnion]]:
        """Reads which unions the server's episodes wait for."""
        reply = yield from self._call("reading the unions", "GET", "/api/unions")
        return read(FollowedView, reply).unions

    def abort(self, grant: EpisodeGrant, reason: str) -> Plan[EpisodeView]:
        """Gives the episode up."""
        body = dump(AbortEpisode(reason=reason[:2000] or "no reason given"))
        return (yield from self._close(grant, "abort", body, _ABORT_PATIENCE_S))

    def heartbeat(self, grant: EpisodeGrant) -> Plan[Lease]:
        """Renews the lease. Tries once: the next heartbeat is the retry."""
        timeout_s = min(10.0, max(1.0, grant.lease_s / 3))
        path = f"/api/episodes/{grant.episode_id}/heartbeat"
        reply = yield from once(Request("POST", path, grant.control_key, timeout_s=timeout_s))
        return read(Lease, reply)

    def events_request(self, after: int) -> Request:
        """Returns the request that watches the events with an id greater than `after`."""
        request = self._request("GET", f"/api/events?after={after}", timeout_s=60.0)
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        return Request(request.method, request.path, request.key, None, request.timeout_s, headers)

    def _close(self, grant: EpisodeGrant, verb: str, body: bytes, patience_s: float) -> Plan[EpisodeView]:
        path = f"/api/episodes/{grant.episode_id}/{verb}"
        request = Request("POST", path, grant.control_key, body, min(_ANSWER_S, patience_s))
        doing = f"{verb.removesuffix('e')}ing episode {grant.episode_id}"
        reply = yield from persist(doing, lambda _: request, patience_s, self.clock)
        return read(EpisodeView, reply)

    def _call(
        self, doing: str, method: str, path: str, patience_s: float | None = None, body: bytes | None = None
    ) -> Plan[Reply]:
        request = self._request(method, path, body)
        patience_s = self._timeout_s if patience_s is None else patience_s
        return (yield from persist(doing, lambda _: request, patience_s, self.clock))

    def _request(self, method: str, path: str, body: bytes | None = None, timeout_s: float = _ANSWER_S) -> Request:
        return Request(method, path, self._token, body, timeout_s)


def _refuse_hopeless(status: StatusView, timeout_s: float, left_s: float) -> None:
    """Raises if the engine failed or the time is up."""
    if status.state == EngineState.FAILED:
        raise EngineFailedError(status.cause)
    if left_s <= 0:
        raise UnavailableError(
            f"gave up after {timeout_s:.0f} s waiting for the server: it is {status.state} ({status.cause})"
        )
