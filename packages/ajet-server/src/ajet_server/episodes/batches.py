"""Batches: chosen from the pool, bound to their episodes before they are trained, recorded afterwards."""

import asyncio

from ajet_core.events import StepFinished, StepReport
from ajet_core.ids import new_batch_id
from ajet_server.capture import records, steps
from ajet_server.capture.ledger import Ledger
from ajet_server.episodes.lifecycle import Episodes
from ajet_server.episodes.pool import Pool
from ajet_server.observe.bus import EventLog
from ajet_server.worker.protocol import EpisodeRow


class Batches:
    """The batches of a job, in the ledger and in the pool.

    Attributes:
        step: that of the last batch that was trained.
        last_report: its report.
    """

    def __init__(self, ledger: Ledger, episodes: Episodes, pool: Pool, events: EventLog) -> None:
        self._ledger = ledger
        self._episodes = episodes
        self._pool = pool
        self._events = events
        self._choosing = asyncio.Lock()
        """Held while episodes are taken for a batch or set aside: none may be both."""
        self.step = ledger.read_now(steps.step_count)
        self.last_report: StepReport | None = ledger.read_now(steps.last_report)

    @property
    def ready(self) -> bool:
        """Whether the batch policy says that a batch is complete."""
        return self._pool.decision().ready

    async def plan(self, weight_version: int) -> tuple[steps.PlannedBatch, int] | None:
        """Binds a batch to its episodes, durably, before any of them is trained.

        Returns:
            The batch and its number of episodes. None when too few are left: those that finished late may be older than
            `max_staleness` allows.
        """
        async with self._choosing:
            await self._episodes.set_aside_unusable(weight_version)
            take = self._pool.decision().take
            if not take:
                return None
            planned = steps.PlannedBatch(new_batch_id(), self.step + 1)
            await self._ledger.write(lambda db: steps.plan_batch(db, planned, list(take)), lambda _: self._bind(take))
        return planned, len(take)

    def _bind(self, take: tuple[str, ...]) -> None:
        self._pool.begin_update()
        self._pool.take(take)

    def reread(self) -> steps.PlannedBatch | None:
        """Takes step and report from the ledger, and returns the batch that was bound and is not recorded, if any."""
        self.step, self.last_report = self._ledger.read_now(steps.step_count), self._ledger.read_now(steps.last_report)
        return self._ledger.read_now(steps.planned_batch)

    async def rows(self, planned: steps.PlannedBatch) -> list[EpisodeRow]:
        """Returns what the worker trains."""
        return await self._ledger.read(lambda db: records.batch_episodes(db, planned.batch_id))

    async def record(self, planned: steps.PlannedBatch, report: StepReport, checkpoint: str, rollout_s: float) -> None:
        """Records, together with its event, that a batch was trained and is in a checkpoint. Again is harmless."""
        text = report.model_dump_json()
        await self._events.emit(
            StepFinished(report=report, rollout_s=rollout_s),
            lambda: self._count(planned.step, report),
            lambda db: steps.finish_batch(db, planned.batch_id, text, checkpoint),
        )

    def _count(self, step: int, report: StepReport) -> None:
        self.step, self.last_report = step, report

    async def set_aside(self, weight_version: int) -> None:
        """Sets finished episodes aside that no batch will take."""
        async with self._choosing:
            await self._episodes.set_aside_unusable(weight_version)
