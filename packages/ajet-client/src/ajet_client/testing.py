"""A control plane in memory and a scripted model: test an agent and its reward without a server.

    from ajet_client import Swarm
    from ajet_client.testing import FakeServer

    with FakeServer(reply=lambda messages: "4").serve() as server, Swarm(server.url) as swarm:
        swarm.run(my_agent, ["What is 2 + 2?"])
    assert server.rewards == [1.0]

`serve()` listens on a free loopback port, for agents that call the model over HTTP. `transport()` replaces the network
of a swarm, without sockets. It speaks `/api` and unstreamed Chat Completions; it checks keys, and does not train. Its
job has the policy `episodes`, so that a run opens one episode per task; set `job` to have groups.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

import httpx2

from ajet_client._fake_episode import FakeEpisode
from ajet_client._fake_plane import Answer, Plane
from ajet_client.clock import Clock
from ajet_core.config import Job
from ajet_core.episode import EpisodeStatus
from ajet_core.errors import AjetError, UnavailableError, to_wire
from ajet_core.events import EngineState, Event

Messages: TypeAlias = list[dict[str, Any]]

__all__ = ["FakeClock", "FakeEpisode", "FakeServer"]


class FakeClock(Clock):
    """A clock that a sleep moves on at once.

    Attributes:
        time: the present, seconds.
        sleeps: every sleep so far, seconds.
    """

    def __init__(self) -> None:
        self.time = 0.0
        self.sleeps: list[float] = []

    def now(self) -> float:
        """Returns the present."""
        return self.time

    def sleep(self, seconds: float, stop: threading.Event | None = None) -> None:
        """Moves the time on."""
        self.sleeps.append(seconds)
        self.time += seconds

    async def async_sleep(self, seconds: float) -> None:
        """Moves the time on, and lets other tasks run."""
        self.sleep(seconds)
        await asyncio.sleep(0)

    def jitter(self) -> float:
        """Returns 0.5."""
        return 0.5


@dataclass
class _Fault:
    route: str
    times: int
    answer: AjetError | None
    """None: the connection is cut."""
    acted: bool = False
    """Whether the server acts before the connection is cut."""
    held: bool = False
    """Whether the request is held until its client leaves."""


class FakeServer:
    """An in-memory swarm server.

    Args:
        reply: the model: from the messages of a chat to the text of the answer.
        lease_s: lease of an episode, seconds. Nothing expires by itself; see `close_episode`.

    Attributes:
        url: where it listens; a made-up name until `serve()`.
        lingers: go on answering after a shutdown.
        requests: the route of each request so far: `open`, `prepare`, `finish`, `abort`, `heartbeat`, `view`,
            `unions`, `union`, `decide`, `status`, `janitor`, `job`, `start`, `stop`, `shutdown`, `health`, `events` or
            `chat`.
    """

    def __init__(self, *, reply: Callable[[Messages], str] = lambda messages: "ok", lease_s: float = 120.0) -> None:
        self.url = "http://fake.invalid"
        self.requests: list[str] = []
        self.lingers = False
        self._plane = Plane(reply, lease_s)
        self._faults: list[_Fault] = []
        self._left = 0
        self._changed = threading.Condition()

    @property
    def episodes(self) -> list[FakeEpisode]:
        """Every episode so far, in the order of their opening."""
        return list(self._plane.episodes.values())

    @property
    def rewards(self) -> list[float]:
        """The rewards of the finished episodes, in the order of their opening."""
        return [episode.reward for episode in self.episodes if episode.reward is not None]

    @property
    def state(self) -> EngineState:
        """The engine's state, `rolling` at first; may be set. Episodes are handed out while it is `rolling`."""
        return self._plane.state

    @state.setter
    def state(self, state: EngineState) -> None:
        self._plane.state = state

    @property
    def job(self) -> Job | None:
        """The job; may be set, also to None."""
        return self._plane.job

    @job.setter
    def job(self, job: Job | None) -> None:
        self._plane.job = job

    @property
    def gone(self) -> bool:
        """Whether it was shut down."""
        return self._plane.gone and not self.lingers

    def add_event(self, event: Event) -> None:
        """Adds an event for those who watch."""
        self._plane.events.append(event)

    def close_episode(self, episode_id: str, reason: str = "its lease ended") -> None:
        """Lets an episode expire."""
        episode = self._plane.episodes[episode_id]
        episode.status, episode.reason = EpisodeStatus.EXPIRED, reason

    def fail(self, route: str, message: str = "busy", *, retry_after_s: float | None = 0, times: int = 1) -> None:
        """Answers the next requests of a route with a 503."""
        self.refuse(route, UnavailableError(message, retry_after_s=retry_after_s), times=times)

    def refuse(self, route: str, error: AjetError, *, times: int = 1) -> None:
        """Answers the next requests of a route with an error."""
        self._faults.append(_Fault(route, times, error))

    def cut(self, route: str, *, times: int = 1, acted: bool = True) -> None:
        """Cuts the connection at the next requests of a route, after the server has acted on them, or before."""
        self._faults.append(_Fault(route, times, None, acted))

    def hold(self, route: str, *, times: int = 1) -> None:
        """Holds the next requests of a route until their clients leave, as `wait_until_left` tells. Needs `serve()`."""
        self._faults.append(_Fault(route, times, None, held=True))

    def wait_until_left(self, count: int, timeout_s: float = 10.0) -> bool:
        """Waits until `count` clients left while their request was held. Returns False after `timeout_s` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._left >= count, timeout_s)

    def wait_for(self, route: str, count: int, timeout_s: float = 10.0) -> bool:
        """Waits until a route was requested `count` times. Returns False after `timeout_s` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self.requests.count(route) >= count, timeout_s)

    def transport(self) -> httpx2.MockTransport:
        """Returns a transport for `Swarm(url, transport=...)` or `AsyncSwarm`."""
        return httpx2.MockTransport(self._respond)

    @contextmanager
    def serve(self, port: int = 0) -> Generator["FakeServer"]:
        """Listens on a loopback port (0: a free one) for a `with` block."""
        listener = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self.url = self._plane.url = f"http://127.0.0.1:{listener.server_port}"
        thread = threading.Thread(target=lambda: listener.serve_forever(poll_interval=0.01), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            listener.shutdown()
            listener.server_close()
            thread.join()

    def answer(
        self, method: str, target: str, key: str | None, body: bytes, until_left: Callable[[], None] | None = None
    ) -> Answer | None:
        """Answers one request; None: cut the connection. `until_left` waits until its client has left."""
        route = self._plane.route(method, target)
        with self._changed:
            self.requests.append(route)
            self._changed.notify_all()
            fault = self._take_fault(route)
            if self.gone:
                return None
        if fault is not None and fault.held:
            self._hold(until_left)
            return None
        if fault is not None and fault.answer is not None:
            return _refusal(fault.answer)
        if fault is not None and not fault.acted:
            return None
        try:
            answer = self._plane.act(route, target, key, body)
        except AjetError as error:
            answer = _refusal(error)
        return answer if fault is None else None

    def _hold(self, until_left: Callable[[], None] | None) -> None:
        if until_left is None:
            raise RuntimeError("only serve() can hold a request")
        until_left()
        with self._changed:
            self._left += 1
            self._changed.notify_all()

    def _take_fault(self, route: str) -> _Fault | None:
        for fault in self._faults:
            if fault.route == route and fault.times > 0:
                fault.times -= 1
                return fault
        return None

    def _respond(self, request: httpx2.Request) -> httpx2.Response:
        key = _bearer(request.headers.get("authorization"))
        answer = self.answer(request.method, request.url.raw_path.decode(), key, request.content)
        if answer is None and self.gone:
            raise httpx2.ConnectError("nobody listens", request=request) from ConnectionRefusedError()
        if answer is None:
            raise httpx2.ReadError("the connection was cut", request=request)
        return httpx2.Response(answer.status, headers=answer.headers, content=answer.body)


def _bearer(header: str | None) -> str | None:
    return header.removeprefix("Bearer ") if header else None


def _refusal(error: AjetError) -> Answer:
    headers = {} if error.retry_after_s is None else {"retry-after": f"{error.retry_after_s:g}"}
    return Answer.json(to_wire(error), error.status, headers)


def _handler(server: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        timeout = 30

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            key = _bearer(self.headers.get("authorization"))
            answer = server.answer(self.command, self.path, key, body, self._until_left)
            if answer is None:
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in {**answer.headers, "content-length": str(len(answer.body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)
            if server.gone:
                self.close_connection = True
                self.server.shutdown()
                self.server.server_close()

        def _until_left(self) -> None:
            self.connection.settimeout(None)
            with suppress(ConnectionError):  # it left with a reset
                self.connection.recv(1, socket.MSG_PEEK)  # there is nothing to read but the end

        def do_GET(self) -> None:
            self.do_POST()

        def do_PUT(self) -> None:
            self.do_POST()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in http.server
            """Says nothing."""

    return Handler
