"""What the gateway keeps of an open episode: its conversations, its running requests, and which answers arrived."""

from collections import Counter
from dataclasses import dataclass, field

import msgspec

from ajet_server.episodes.book import OpenState
from ajet_server.gateway.continuity import Continuity
from ajet_server.gateway.runs import Run


class Origin(msgspec.Struct, frozen=True):
    """How a request came.

    Attributes:
        dialect: in which it was asked.
        digest: of path, body and role; a retry has the same.
        retry: True when the SDK says that it tried before.
        role: that the key named.
    """

    dialect: str
    digest: bytes
    retry: bool
    role: str | None = None


@dataclass(slots=True)
class Claim:
    """What a request takes of its episode's limits, until its calls are recorded or it ends without that.

    Attributes:
        state: the episode.
        calls: in flight from now on.
        tokens: that they may sample at most.
    """

    state: OpenState
    calls: int
    tokens: int = 0

    def __post_init__(self) -> None:
        self.state.in_flight += self.calls

    def reserve(self, tokens: int) -> None:
        """Keeps tokens from the calls that come later."""
        self.tokens += tokens
        self.state.reserved += tokens

    def release(self) -> None:
        """Gives everything back. Again is harmless."""
        self.state.in_flight -= self.calls
        self.state.reserved -= self.tokens
        self.calls = self.tokens = 0


@dataclass(slots=True)
class Session:
    """One open episode as the gateway sees it.

    Attributes:
        continuity: its calls as token ids.
        running: requests that are being answered, by digest; of equal ones that run at once, the first.
        asked: how many requests came since the server started, by digest; their retries are not counted.
        delivered: ids of answers that were sent to the end.
    """

    continuity: Continuity
    running: dict[bytes, Run] = field(default_factory=dict[bytes, Run])
    asked: Counter[bytes] = field(default_factory=Counter[bytes])
    delivered: set[str] = field(default_factory=set[str])

    def forget(self, origin: Origin, run: Run) -> None:
        """Takes a run that is over out of `running`."""
        if self.running.get(origin.digest) is run:
            del self.running[origin.digest]
