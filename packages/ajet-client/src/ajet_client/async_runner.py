"""The bounded runner of the `AsyncSwarm`: agents in tasks.

A cancellation reaches every agent, each episode is aborted as it leaves its block, and the cancellation goes on. An
opening that the server holds is cut: the HTTP client closes the connection of a request that is cancelled.
"""

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Generic, Protocol, TypeAlias, TypeVar

from pydantic import JsonValue

from ajet_client.attempts import Attempted, Attempts, adopt
from ajet_client.clock import Clock
from ajet_client.episode import AsyncEpisode
from ajet_client.progress import Show, expected_total, progress_bar
from ajet_client.report import EpisodeRecord, RunReport, RunSettings, Slot, new_report, slots_of
from ajet_client.tasks import TaskLike

AsyncAgent: TypeAlias = Callable[[AsyncEpisode], Awaitable[object]]
"""Runs one episode. Returns its reward, or None after `episode.reward(...)`."""
E = TypeVar("E", bound=Attempted)
E_co = TypeVar("E_co", bound=Attempted, covariant=True)
TaskStream: TypeAlias = "Iterable[TaskLike] | AsyncIterable[TaskLike]"


class AsyncOpens(Protocol[E_co]):
    """Where a runner opens episodes, or teams of them: a swarm, or several together."""

    @property
    def clock(self) -> Clock:
        """Tells the time."""
        ...

    def episode(
        self,
        task: JsonValue = None,
        *,
        kind: str,
        task_id: str | None,
        group_id: str | None,
        weights: int | None,
        source: str | None,
        wait: float,
    ) -> AbstractAsyncContextManager[E_co]:
        """Opens one for an `async with` block."""
        ...


class AsyncRunner(Generic[E]):
    """One call of `AsyncSwarm.run` or `AsyncTogether.run`."""

    def __init__(
        self, swarm: AsyncOpens[E], agent: Callable[[E], Awaitable[object]], group_size: int, settings: RunSettings
    ) -> None:
        self._swarm = swarm
        self._agent = agent
        self._group_size = group_size
        self._settings = settings
        self._report = new_report(settings)
        self._show: Show = lambda report: None
        self._free = asyncio.Semaphore(settings.concurrency)

    async def run(self, tasks: "TaskStream") -> RunReport:
        """Runs everything and returns the report."""
        total = expected_total(tasks, self._group_size)
        with progress_bar(self._settings.progress, total) as self._show:
            try:
                await self._hand_out(_slots(tasks, self._group_size))
            except BaseExceptionGroup as failures:
                error = failures.exceptions[0]  # one that stopped the run; the others were only told to stop
                error.add_note(f"the run was stopped: {self._report}")
                raise error from error.__cause__
        return self._report

    async def _hand_out(self, source: AsyncIterator[Slot]) -> None:
        async with asyncio.TaskGroup() as workers:
            await self._free.acquire()
            async for slot in source:
                workers.create_task(self._serve(slot))
                await self._free.acquire()

    async def _serve(self, slot: Slot) -> None:
        """Tries a slot until it has a reward or no attempt is left."""
        attempts = Attempts(slot, self._settings, self._swarm.clock)
        while not await self._attempt(attempts):
            pass
        self._tell(attempts.record())
        self._free.release()

    async def _attempt(self, attempts: Attempts) -> bool:
        """Returns whether the slot is through. Raises only if no episode could be opened, or at a cancellation."""
        slot, settings = attempts.slot, self._settings
        episode = None
        try:
            async with self._swarm.episode(
                slot.task.data,
                kind=settings.kind,
                task_id=slot.task.id,
                group_id=slot.group_id,
                weights=settings.weights,
                source=settings.source,
                wait=settings.wait_s,
            ) as episode:
                attempts.opened(episode)
                adopt(episode, await self._call(episode))
        except Exception as error:
            if episode is not None:
                return not attempts.failed(error)
            if not attempts.refused(error):
                raise
            return False
        return True

    async def _call(self, episode: E) -> object:
        returned: object = self._agent(episode)
        return await returned if inspect.isawaitable(returned) else returned

    def _tell(self, record: EpisodeRecord) -> None:
        self._report.add(record)
        self._show(self._report)
        if self._settings.on_result is not None:
            self._settings.on_result(record)


async def _slots(items: "TaskStream", group_size: int) -> AsyncIterator[Slot]:
    """Yields the slots of all tasks, reading no task before its first slot is asked for."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            for slot in slots_of(item, group_size):
                yield slot
        return
    for item in items:
        for slot in slots_of(item, group_size):
            yield slot
