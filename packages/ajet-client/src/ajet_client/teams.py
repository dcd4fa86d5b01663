"""`together`: one client, several servers. Their episodes are finished together or not at all.

with together(a, b, task="...") as (planner, executor):
    ...
    planner.reward(0.3)
    executor.reward(0.7)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from ajet_client.async_swarm import AsyncSwarm
from ajet_client.async_teams import AsyncTogether
from ajet_client.episode import Episode
from ajet_client.resolving import Resolution, resolving
from ajet_client.seats import opening
from ajet_client.servers import Asked, Servers, one_size
from ajet_client.swarm import Swarm
from ajet_client.team_base import TeamBase
from ajet_core.errors import AjetError, RequestError

if TYPE_CHECKING:
    from types import TracebackType

    from pydantic import JsonValue

    from ajet_client.report import EpisodeRecord, RunReport
    from ajet_client.steps import Steps
    from ajet_client.tasks import TaskLike
    from ajet_client.transport import Stop
    from ajet_core.wire import EpisodeGrant

T = TypeVar("T")

logger = logging.getLogger("ajet_client")


class Team(TeamBase[Episode]):
    """The open episodes of a team, in threads."""

    def __init__(self, episodes: Sequence[Episode], together: Together) -> None:
        super().__init__(episodes, together.apis, together.swarms[0].url)
        self._together = together

    def abort(self, reason: str) -> None:
        """Gives all up, unless they are being finished already. Again is harmless."""
        self._together.drive(self.abandon(reason))


TeamAgent: TypeAlias = Callable[[Team], object]
"""Runs one team. Returns the rewards in the order of its episodes, or None after it set them."""


class Together(Servers[Swarm]):
    """Several `Swarm`s as one; made by `together`. A context manager for one team at a time."""

    _context: AbstractContextManager[Team] | None = None

    def __enter__(self) -> Team:
        if self._context is not None:
            raise RuntimeError("it is entered already; call together(...) again for another team")
        self._context = self._open(self.asked, None)
        return self._context.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        context, self._context = self._context, None
        if context is None:
            raise RuntimeError("it was not entered")
        return context.__exit__(kind, error, trace)

    def episode(
        self,
        task: JsonValue = None,
        *,
        kind: str = "train",
        task_id: str | None = None,
        group_id: str | None = None,
        weights: int | None = None,
        source: str | None = None,
        wait: float = 600.0,
        stop: Stop | None = None,
    ) -> AbstractContextManager[Team]:
        """Opens a team for a `with` block, as `together` does; for runners."""
        return self._open(Asked(task, None, kind, task_id, group_id, wait, weights, source), stop)

    @contextmanager
    def _open(self, asked: Asked, stop: Stop | None) -> Generator[Team]:
        if self.has_to_resolve():
            self._resolve_earlier()
        team = Team(self.drive(opening(self.seats(asked), self._take, self._drop, asked.wait, self.clock), stop), self)
        try:
            yield team
        except BaseException as error:
            self.drive(team.fail(error))
            raise
        else:
            self.drive(team.settle())
        finally:
            self.left(team)
            for number, episode in enumerate(team):
                self._drop(number, episode)

    def run(
        self,
        agent: TeamAgent,
        tasks: Iterable[TaskLike],
        *,
        group_size: int | None = None,
        concurrency: int = 16,
        kind: str = "train",
        weights: int | None = None,
        source: str | None = None,
        attempts: int = 3,
        wait: float = 600.0,
        progress: bool = True,
        on_result: Callable[[EpisodeRecord], object] | None = None,
        keep_records: int | None = None,
    ) -> RunReport:
        """Runs an agent on tasks, `group_size` teams each; for the rest see `Swarm.run`.

        The groups of a task have the same name on all servers, and a team's episodes are in the same place of each. An
        attempt that fails is aborted on all servers. A record's reward is the mean of its team's; each is among its
        metrics, as `0.reward`, `1.reward`.

        Raises:
            RequestError: besides what `Swarm.run` says, the servers compare groups of different sizes, or one that is
                there twice updates on a number of groups that teams cannot complete.
        """
        from ajet_client.agents import FunctionAgent
        from ajet_client.report import RunSettings
        from ajet_client.runner import Runner
        from ajet_client.sizing import sizing

        self.refuse_asked()
        settings = RunSettings(concurrency, kind, attempts, wait, progress, on_result, keep_records, weights, source)
        sizes: list[int] = []
        for swarm in self.swarms:
            api, link, _ = swarm.inner
            sizes.append(link.run(sizing(api, kind, group_size, tasks, wait, roles=self.roles(swarm))))
        return Runner(self, FunctionAgent(agent), one_size(sizes), settings).run(tasks)

    def resolve(self) -> Resolution:
        """Brings the servers' decisions to each other; see `resolve`."""
        return self.drive(resolving(self.apis))

    def drive(self, steps: Steps[T], stop: Stop | None = None) -> T:
        """Runs steps to their end. Raises what they raise."""
        try:
            step = next(steps)
            while True:
                try:
                    outcome = self.swarms[step.server].inner[1].run(step.plan, stop if step.stoppable else None)
                except BaseException as error:  # noqa: BLE001 - the steps decide what becomes of it
                    step = steps.throw(error)
                else:
                    step = steps.send(outcome)
        except StopIteration as end:
            return end.value

    def _resolve_earlier(self) -> None:
        try:
            self.resolve()
        except AjetError as trouble:
            logger.warning("what earlier clients left undecided waits on: %s", trouble)

    def _take(self, number: int, grant: EpisodeGrant, task: JsonValue) -> Episode:
        api, link, heartbeats = self.swarms[number].inner
        episode = Episode(api, grant, task, link)
        heartbeats.add(episode)
        return episode

    def _drop(self, number: int, episode: Episode) -> None:
        self.swarms[number].inner[2].drop(episode)


@overload
def together(
    *swarms: Swarm,
    task: JsonValue = None,
    tasks: Sequence[JsonValue] | None = None,
    kind: str = "train",
    task_id: str | None = None,
    group_id: str | None = None,
    weights: int | None = None,
    source: str | None = None,
    wait: float = 600.0,
) -> Together: ...


@overload
def together(
    *swarms: AsyncSwarm,
    task: JsonValue = None,
    tasks: Sequence[JsonValue] | None = None,
    kind: str = "train",
    task_id: str | None = None,
    group_id: str | None = None,
    weights: int | None = None,
    source: str | None = None,
    wait: float = 600.0,
) -> AsyncTogether: ...


def together(
    *swarms: Any,
    task: JsonValue = None,
    tasks: Sequence[JsonValue] | None = None,
    kind: str = "train",
    task_id: str | None = None,
    group_id: str | None = None,
    weights: int | None = None,
    source: str | None = None,
    wait: float = 600.0,
) -> Together | AsyncTogether:
    """Opens one episode on each of several servers for a `with` block, and finishes all of them or none.

    The block gets the episodes in the order of the servers. When it ends, each server records durably what its episode
    promises, then the first one is finished, which decides, then the others. If the block raises, or anything fails
    before the first is finished, all are aborted; so they are if a reward is missing, with a warning. A crash of the
    client, or of any server, at any instant cannot leave them mixed: see `resolve`.

    Args:
        swarms: two or more, all `Swarm` or all `AsyncSwarm` (then use `async with`). The same one twice gives two
            episodes of one server, in groups of their own: self-play.
        task: what the agents are to do, any JSON value, the same on all servers.
        tasks: instead, one for each server.
        kind: `train` or `eval`.
        task_id: name of the task. By default equal tasks are one task.
        group_id: the group to join, by the same name on all servers. By default each server chooses.
        weights: only with `eval`: the weight version to evaluate on every server, 0 for the models as loaded.
        source: where the task comes from, see `Swarm.episode`.
        wait: how long to wait until every server hands out an episode, seconds.

    Returns:
        A context manager, which also has `run(agent, tasks, ...)`.

    Raises:
        RequestError: there are fewer than two servers, or they are of different kinds.
    """
    asked = Asked(task, tasks, kind, task_id, group_id, wait, weights, source)
    return AsyncTogether(swarms, asked) if _are_async(swarms) else Together(swarms, asked)


@overload
def resolve(*swarms: Swarm) -> Resolution: ...


@overload
def resolve(*swarms: AsyncSwarm) -> Coroutine[Any, Any, Resolution]: ...


def resolve(*swarms: Any) -> Resolution | Coroutine[Any, Any, Resolution]:
    """Brings the decisions of some servers to the episodes of others whose client died before it could tell them.

    `together` does so by itself with its servers, the first time it opens a team. Again is harmless, and anybody who
    may use these servers may do it: what was decided proves itself. With `AsyncSwarm`s, await it.

    Raises:
        RequestError: there are fewer than two servers, or they are of different kinds.
        UnavailableError: one does not answer. What was brought until then stays.
    """
    return together(*swarms).resolve()


def _are_async(swarms: Sequence[object]) -> bool:
    kinds = {type(swarm) for swarm in swarms}
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise RequestError(f"swarms: want servers of one kind, Swarm or AsyncSwarm, got {names}", field="swarms")
    return kinds == {AsyncSwarm}
