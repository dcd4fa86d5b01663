"""Several servers, and what to open there; shared by `teams` and `async_teams`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import JsonValue

from ajet_client.async_swarm import AsyncSwarm
from ajet_client.clock import Clock
from ajet_client.seats import Seat, seats_of
from ajet_client.swarm import Swarm
from ajet_client.team_base import TeamBase
from ajet_core.errors import RequestError

S = TypeVar("S", Swarm, AsyncSwarm)


@dataclass(frozen=True)
class Asked:
    """What a team's episodes are opened with; see `together`."""

    task: JsonValue = None
    tasks: Sequence[JsonValue] | None = None
    kind: str = "train"
    task_id: str | None = None
    group_id: str | None = None
    wait: float = 600.0
    weights: int | None = None
    source: str | None = None


class Servers(Generic[S]):
    """What both kinds share: the servers, and what to open there."""

    def __init__(self, swarms: Sequence[S], asked: Asked) -> None:
        if len(swarms) < 2:
            raise RequestError(f"swarms: together wants at least 2 servers, got {len(swarms)}", field="swarms")
        self.swarms = tuple(swarms)
        self.apis = [swarm.inner[0] for swarm in swarms]
        self.asked = asked
        self._to_resolve = True

    @property
    def clock(self) -> Clock:
        """Tells the time."""
        return self.apis[0].clock

    def roles(self, swarm: S) -> int:
        """How many episodes of a team are of this server."""
        return sum(other.url == swarm.url for other in self.swarms)

    def seats(self, asked: Asked) -> list[Seat]:
        count, tasks = len(self.swarms), asked.tasks
        if tasks is not None and (asked.task is not None or len(tasks) != count):
            raise RequestError(
                f"tasks: want {count}, one for each server, and then no task; got {len(tasks)}", field="tasks"
            )
        urls = [swarm.url for swarm in self.swarms]
        given = [asked.task] * count if tasks is None else tasks
        return seats_of(
            self.apis,
            urls,
            given,
            kind=asked.kind,
            task_id=asked.task_id,
            group_id=asked.group_id,
            weights=asked.weights,
            source=asked.source,
        )

    def has_to_resolve(self) -> bool:
        """True the first time, and once after a team that left doubt."""
        due, self._to_resolve = self._to_resolve, False
        return due

    def left(self, team: TeamBase[Any]) -> None:
        """A team is closed."""
        self._to_resolve = self._to_resolve or team.left_doubt

    def refuse_asked(self) -> None:
        if self.asked != Asked():
            raise RequestError("task: what is given to together has no effect on run; give it to run", field="task")


def one_size(sizes: Sequence[int]) -> int:
    """Returns the size of groups that all servers agree on. Raises `RequestError` if they do not."""
    if len(set(sizes)) > 1:
        raise RequestError(
            f"group_size: the servers compare groups of {', '.join(map(str, sizes))} (batch.group_size of their jobs); "
            "a team needs one size for all",
            field="group_size",
        )
    return sizes[0]
