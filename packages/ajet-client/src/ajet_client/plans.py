"""Plans: what to do, without doing it, so that the sync and the async swarm share every decision.

A plan is a generator. It yields a `Request` and is sent the `Reply` (or `Broken`, if there was none); it yields a
`Pause` and is sent None; it returns its result or raises. `transport.Link` and `transport.AsyncLink` run plans.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request to the control plane.

    Attributes:
        method: `GET`, `POST` or `PUT`.
        path: begins with `/`; relative to the swarm's URL.
        key: bearer token to send, if any.
        body: JSON, if any.
        timeout_s: seconds of silence after which the connection is given up.
        headers: further headers.
    """

    method: str
    path: str
    key: str | None = field(default=None, repr=False)
    body: bytes | None = None
    timeout_s: float = 30.0
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait this many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer. The names of the headers are in lower case."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def ok(self) -> bool:
        """Whether the status is a 2xx."""
        return 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class Broken:
    """No answer: the connection failed, was cut or timed out. The server may have acted all the same.

    Attributes:
        reason: what happened, for people.
        refused: nobody listens there.
    """

    reason: str
    refused: bool = False


Plan: TypeAlias = Generator[Request | Pause, Reply | Broken | None, T]


def ask(request: Request) -> Plan[Reply | Broken]:
    """Sends one request and returns what came of it."""
    outcome = yield request
    if outcome is None:
        raise TypeError(f"whoever runs a plan must answer its requests: {request}")
    return outcome
