"""The only file that knows HTTP: `Link` runs plans in a thread, `AsyncLink` in a task."""

import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any, TypedDict
from weakref import WeakSet

import httpx2

from ajet_client.clock import Clock
from ajet_client.plans import Broken, Pause, Plan, Reply, Request, T

_CONNECT_S = 10.0
_HEADERS = {"User-Agent": "ajet-client"}


class ConnectionBrokenError(Exception):
    """A stream could not be opened, or ended in the middle.

    Attributes:
        outcome: what to show to `retry.Wait`.
    """

    def __init__(self, outcome: Reply | Broken) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class StoppedError(Exception):
    """The plan was given up because its `stop` event is set.

    Attributes:
        cut: whether that cut a request, which the server may have acted on.
    """

    def __init__(self, reason: str, *, cut: bool = False) -> None:
        super().__init__(reason)
        self.cut = cut


class Stop(threading.Event):
    """Once it is set, what runs under it is given up: pauses end, and requests are cut.

    A thread that waits for an answer cannot be interrupted, and closing its socket does not wake it. Shutting the
    socket down does, and the server sees at once that nobody waits any more. Requests under a `Stop` have connections
    of their own, so that nothing else is cut.

    Attributes:
        reason: why, for people; to be set before `set`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reason = "the run was stopped"
        self._lock = threading.Lock()
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._client: httpx2.Client | None = None

    def set(self) -> None:
        """Gives up."""
        super().set()
        with self._lock:
            sockets = list(self._sockets)
        for connected in sockets:
            _shut(connected)

    def close(self) -> None:
        """Closes the connections."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def send(self, arguments: "_Arguments", trusted: ssl.SSLContext | None) -> httpx2.Response:
        """Sends a request that `set` cuts. `trusted` is always the same."""
        with self._lock:
            if self._client is None:
                self._client = httpx2.Client(verify=trusted or True, limits=_limits(), headers=_HEADERS)
            client = self._client
        return client.request(**arguments, extensions={"trace": self._trace})

    def _trace(self, event: str, info: dict[str, Any]) -> None:
        """The HTTP client's account of what it does; among it each connection that it makes."""
        if not event.endswith(("connect_tcp.complete", "start_tls.complete")):
            return
        connected: socket.socket = info["return_value"].get_extra_info("socket")
        with self._lock:
            self._sockets.add(connected)
        if self.is_set():
            _shut(connected)


class Link:
    """One pool of connections to one server, for any number of threads."""

    def __init__(
        self, url: str, transport: httpx2.BaseTransport | None, clock: Clock, trusted: ssl.SSLContext | None = None
    ) -> None:
        self._url = url
        self._clock = clock
        self._trusted = trusted
        self._replaced = transport is not None
        self._client = httpx2.Client(transport=transport, verify=trusted or True, limits=_limits(), headers=_HEADERS)

    def run(self, plan: Plan[T], stop: Stop | None = None) -> T:
        """Runs a plan to its end. Raises what the plan raises, and `StoppedError` soon after `stop` is set.

        Requests under a `stop` are cut, unless the network was replaced.
        """
        outcome = None
        while True:
            try:
                step = plan.send(outcome)
            except StopIteration as end:
                return end.value
            if stop is not None and stop.is_set():
                raise StoppedError(stop.reason)
            outcome = self._clock.sleep(step.seconds, stop) if isinstance(step, Pause) else self._send(step, stop)
            if isinstance(outcome, Broken) and stop is not None and stop.is_set():
                raise StoppedError(stop.reason, cut=True)  # cut by us: nothing to be told or tried again

    def stream(self, request: Request, connected: Callable[[], None]) -> Iterator[str]:
        """Yields the data of each server-sent event, and calls `connected` before the first.

        Raises:
            ConnectionBrokenError: the stream could not be opened, broke, or ended.
        """
        try:
            with self._client.stream(**_arguments(self._url, request)) as response:
                if not response.is_success:
                    response.read()
                    raise ConnectionBrokenError(_reply(response))
                connected()
                yield from (event.data for event in httpx2.EventSource(response))
        except httpx2.TransportError as error:
            raise ConnectionBrokenError(_broken(self._url, error)) from error
        raise ConnectionBrokenError(Broken(f"{self._url} ended the stream"))

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _send(self, request: Request, stop: Stop | None) -> Reply | Broken:
        arguments = _arguments(self._url, request)
        try:
            if stop is None or self._replaced:
                return _reply(self._client.request(**arguments))
            return _reply(stop.send(arguments, self._trusted))
        except httpx2.TransportError as error:
            return _broken(self._url, error)


class AsyncLink:
    """One pool of connections to one server, for any number of tasks of one event loop."""

    def __init__(
        self, url: str, transport: httpx2.AsyncBaseTransport | None, clock: Clock, trusted: ssl.SSLContext | None = None
    ) -> None:
        self._url = url
        self._clock = clock
        self._client = httpx2.AsyncClient(
            transport=transport, verify=trusted or True, limits=_limits(), headers=_HEADERS
        )

    async def run(self, plan: Plan[T]) -> T:
        """Runs a plan to its end. Raises what the plan raises."""
        outcome = None
        while True:
            try:
                step = plan.send(outcome)
            except StopIteration as end:
                return end.value
            if isinstance(step, Pause):
                outcome = await self._clock.async_sleep(step.seconds)
            else:
                outcome = await self._send(step)

    async def stream(self, request: Request, connected: Callable[[], None]) -> AsyncIterator[str]:
        """Yields the data of each server-sent event, and calls `connected` before the first.

        Raises:
            ConnectionBrokenError: the stream could not be opened, broke, or ended.
        """
        try:
            async with self._client.stream(**_arguments(self._url, request)) as response:
                if not response.is_success:
                    await response.aread()
                    raise ConnectionBrokenError(_reply(response))
                connected()
                async for event in httpx2.EventSource(response):
                    yield event.data
        except httpx2.TransportError as error:
            raise ConnectionBrokenError(_broken(self._url, error)) from error
        raise ConnectionBrokenError(Broken(f"{self._url} ended the stream"))

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()

    async def _send(self, request: Request) -> Reply | Broken:
        try:
            return _reply(await self._client.request(**_arguments(self._url, request)))
        except httpx2.TransportError as error:
            return _broken(self._url, error)


def _limits() -> httpx2.Limits:
    """No bound on connections: the runner bounds the episodes, and a heartbeat must never wait for a free one."""
    return httpx2.Limits(max_connections=None, max_keepalive_connections=100)


class _Arguments(TypedDict):
    method: str
    url: str
    content: bytes | None
    headers: dict[str, str]
    timeout: httpx2.Timeout


def _arguments(url: str, request: Request) -> _Arguments:
    headers = dict(request.headers)
    if request.key is not None:
        headers["Authorization"] = f"Bearer {request.key}"
    if request.body is not None:
        headers["Content-Type"] = "application/json"
    timeout = httpx2.Timeout(request.timeout_s, connect=min(_CONNECT_S, request.timeout_s))
    return _Arguments(
        method=request.method, url=url + request.path, content=request.body, headers=headers, timeout=timeout
    )


def _reply(response: httpx2.Response) -> Reply:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Reply(response.status_code, response.content, headers)


def _broken(url: str, error: httpx2.TransportError) -> Broken:
    return Broken(f"no answer from {url}: {str(error) or 'timed out'} ({type(error).__name__})", _is_refusal(error))


def _is_refusal(error: BaseException | None) -> bool:
    """Whether nobody listens there, as far as the causes of the error say. With several addresses they form a group."""
    if isinstance(error, BaseExceptionGroup):
        return any(_is_refusal(cause) for cause in error.exceptions)
    if error is None or isinstance(error, ConnectionRefusedError):
        return error is not None
    return _is_refusal(error.__cause__ or error.__context__)


def _shut(connected: socket.socket) -> None:
    """Ends a connection, and the waiting of a thread that reads from it. TLS needs no word of farewell here."""
    with suppress(OSError):  # closed already
        socket.socket.shutdown(connected, socket.SHUT_RDWR)
