"""What the gateway keeps of an open episode: its conversations, its running requests, and which answers arrived."""

from dataclasses import dataclass, field

from ajet_server.gateway.continuity import Continuity
from ajet_server.gateway.runs import Run


@dataclass(frozen=True, slots=True)
class Origin:
    """How a request came.

    Attributes:
        dialect: in which it was asked.
        digest: of path and body; a retry has the same.
        retry: True when the SDK says that it tried before.
    """

    dialect: str
    digest: bytes
    retry: bool


@dataclass(slots=True)
class Session:
    """One open episode as the gateway sees it.

    Attributes:
        continuity: its calls as token ids.
        running: requests that are being answered, by digest.
        delivered: ids of answers that were sent to the end.
    """

    continuity: Continuity
    running: dict[bytes, Run] = field(default_factory=dict[bytes, Run])
    delivered: set[str] = field(default_factory=set[str])

    def add(self, origin: Origin, run: Run) -> Run:
        """Makes a run known to retries while it lasts; of equal requests that run at once, the first."""
        self.running.setdefault(origin.digest, run)
        run.task.add_done_callback(lambda _: self._forget(origin, run))
        return run

    def _forget(self, origin: Origin, run: Run) -> None:
        if self.running.get(origin.digest) is run:
            del self.running[origin.digest]
