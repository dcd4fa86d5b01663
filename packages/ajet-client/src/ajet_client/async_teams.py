"""`AsyncTogether`: several servers as one, for asyncio."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from ajet_client.async_swarm import AsyncSwarm
from ajet_client.episode import AsyncEpisode
from ajet_client.resolving import Resolution, resolving
from ajet_client.seats import opening
from ajet_client.servers import Asked, Servers, one_size
from ajet_client.team_base import TeamBase
from ajet_core.errors import AjetError

if TYPE_CHECKING:
    from types import TracebackType

    from pydantic import JsonValue

    from ajet_client.async_runner import TaskStream
    from ajet_client.report import EpisodeRecord, RunReport
    from ajet_client.steps import Steps
    from ajet_core.wire import EpisodeGrant

T = TypeVar("T")

logger = logging.getLogger("ajet_client")


class AsyncTeam(TeamBase[AsyncEpisode]):
    """The open episodes of a team, for asyncio."""

    def __init__(self, episodes: Sequence[AsyncEpisode], together: AsyncTogether) -> None:
        super().__init__(episodes, together.apis, together.swarms[0].url)
        self._together = together

    async def abort(self, reason: str) -> None:
        """Gives all up, unless they are being finished already. Again is harmless."""
        await self._together.drive(self.abandon(reason))


AsyncTeamAgent: TypeAlias = Callable[[AsyncTeam], Awaitable[object]]
"""Runs one team. Returns the rewards in the order of its episodes, or None after it set them."""


class AsyncTogether(Servers[AsyncSwarm]):
    """Several `AsyncSwarm`s as one; made by `together`. Each method does what its namesake of `Together` does."""

    _context: AbstractAsyncContextManager[AsyncTeam] | None = None

    async def __aenter__(self) -> AsyncTeam:
        if self._context is not None:
            raise RuntimeError("it is entered already; call together(...) again for another team")
        self._context = self._open(self.asked)
        return await self._context.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        context, self._context = self._context, None
        if context is None:
            raise RuntimeError("it was not entered")
        return await context.__aexit__(kind, error, trace)

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
    ) -> AbstractAsyncContextManager[AsyncTeam]:
        """Opens a team for an `async with` block, as `together` does; for runners."""
        return self._open(Asked(task, None, kind, task_id, group_id, wait, weights, source))

    @asynccontextmanager
    async def _open(self, asked: Asked) -> AsyncGenerator[AsyncTeam]:
        if self.has_to_resolve():
            await self._resolve_earlier()
        steps = opening(self.seats(asked), self._take, self._drop, asked.wait, self.clock)
        team = AsyncTeam(await self.drive(steps), self)
        try:
            yield team
        except BaseException as error:
            await self.drive(team.fail(error))
            raise
        else:
            await self.drive(team.settle())
        finally:
            self.left(team)
            for number, episode in enumerate(team):
                self._drop(number, episode)

    async def run(
        self,
        agent: AsyncTeamAgent,
        tasks: TaskStream,
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
        """Runs an agent on tasks, `group_size` teams each; see `Together.run`."""
        from ajet_client.async_runner import AsyncRunner
        from ajet_client.report import RunSettings
        from ajet_client.sizing import sizing

        self.refuse_asked()
        settings = RunSettings(concurrency, kind, attempts, wait, progress, on_result, keep_records, weights, source)
        sizes: list[int] = []
        for swarm in self.swarms:
            api, link, _ = swarm.inner
            sizes.append(await link.run(sizing(api, kind, group_size, tasks, wait, roles=self.roles(swarm))))
        return await AsyncRunner(self, agent, one_size(sizes), settings).run(tasks)

    async def resolve(self) -> Resolution:
        """Brings the servers' decisions to each other; see `resolve`."""
        return await self.drive(resolving(self.apis))

    async def drive(self, steps: Steps[T]) -> T:
        """Runs steps to their end. Raises what they raise."""
        try:
            step = next(steps)
            while True:
                try:
                    outcome = await self.swarms[step.server].inner[1].run(step.plan)
                except BaseException as error:  # noqa: BLE001 - the steps decide what becomes of it
                    step = steps.throw(error)
                else:
                    step = steps.send(outcome)
        except StopIteration as end:
            return end.value

    async def _resolve_earlier(self) -> None:
        try:
            await self.resolve()
        except AjetError as trouble:
            logger.warning("what earlier clients left undecided waits on: %s", trouble)

    def _take(self, number: int, grant: EpisodeGrant, task: JsonValue) -> AsyncEpisode:
        api, link, heartbeats = self.swarms[number].inner
        episode = AsyncEpisode(api, grant, task, link)
        heartbeats.add(episode)
        return episode

    def _drop(self, number: int, episode: AsyncEpisode) -> None:
        self.swarms[number].inner[2].drop(episode)
