"""The only file that knows HTTP: `Link` runs plans in a thread, `AsyncLink` in a task."""

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypedDict

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
    """The plan was given up because its `stop` event is set."""

    def __init__(self) -> None:
        super().__init__("the run was stopped")


class Link:
    """One pool of connections to one server, for any number of threads."""

    def __init__(self, url: str, transport: httpx2.BaseTransport | None, clock: Clock) -> None:
        self._url = url
        self._clock = clock
        self._client = httpx2.Client(transport=transport, limits=_limits(), headers=_HEADERS)

    def run(self, plan: Plan[T], stop: threading.Event | None = None) -> T:
        """Runs a plan to its end. Raises what the plan raises, and `StoppedError` soon after `stop` is set."""
        outcome = None
        while True:
            try:
                step = plan.send(outcome)
            except StopIteration as end:
                return end.value
            if stop is not None and stop.is_set():
                raise StoppedError
            outcome = self._clock.sleep(step.seconds, stop) if isinstance(step, Pause) else self._send(step)

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

    def _send(self, request: Request) -> Reply | Broken:
        try:
            return _reply(self._client.request(**_arguments(self._url, request)))
        except httpx2.TransportError as error:
            return _broken(self._url, error)


class AsyncLink:
    """One pool of connections to one server, for any number of tasks of one event loop."""

    def __init__(self, url: str, transport: httpx2.AsyncBaseTransport | None, clock: Clock) -> None:
        self._url = url
        self._clock = clock
        self._client = httpx2.AsyncClient(transport=transport, limits=_limits(), headers=_HEADERS)

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
    return Broken(f"no answer from {url}: {str(error) or 'timed out'} ({type(error).__name__})")
