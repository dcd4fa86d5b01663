"""The training loop, seen from the API process: it moves the engine through its states and owns no tensor.

    offline -> booting -> rolling -> draining -> updating -> syncing -> rolling        failed, with a cause

    booting    a worker loads the model and the newest checkpoint; a batch that was cut off is done again
    rolling    episodes are handed out until the batch policy says that a batch is complete
    draining   no new train episodes; open ones may finish, with a deadline
    updating   the batch is bound to its episodes in the ledger, then trained and checkpointed
    syncing    the engine takes the new weights and the probe must agree (contract 8)

With `engine.during_update` other than `drain` there is no draining: episodes are handed out and calls answered, on the
old weights, while an update computes. Calls that run when the weights change end first, with a deadline (`finish`), or
are paused and go on with the new ones (`continue`).

A worker that dies in any state is replaced; calls wait in the supervisor meanwhile. While the disk is full, what could
not be written is tried again, from `booting` on: nothing that was acknowledged depends on it.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from ajet_core.config import Job
from ajet_core.episode import EpisodeKind
from ajet_core.errors import AjetError, ConflictError, DiskFullError, EngineFailedError, StorageError, UnavailableError
from ajet_core.events import (
    EngineState,
    StateChanged,
    StepReport,
    UpdateProgress,
    WeightsSynced,
    WorkerRestarted,
)
from ajet_server.capture.steps import PlannedBatch
from ajet_server.episodes.batches import Batches
from ajet_server.episodes.janitor import Janitor
from ajet_server.episodes.lifecycle import Episodes
from ajet_server.observe.bus import EventLog
from ajet_server.worker import protocol
from ajet_server.worker.process import WORKER_COMMAND, WorkerOutOfRoomError, WorkerRefusedError
from ajet_server.worker.supervisor import Supervisor

log = logging.getLogger("ajet.conductor")

_MIN_PATIENCE_S = 5.0
_ROOM_EVERY_S = 10.0
"""How often a full disk is tried again."""
_ROLLING = frozenset({EngineState.ROLLING})
_SERVING = frozenset({EngineState.ROLLING, EngineState.DRAINING, EngineState.UPDATING, EngineState.SYNCING})


class Conductor:
    """Runs one job. `start` returns at once; `state` and `cause` tell how it goes."""

    def __init__(
        self,
        job: Job,
        checkpoints: Path,
        episodes: Episodes,
        batches: Batches,
        janitor: Janitor,
        events: EventLog,
        worker_command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        self._job = job
        self._checkpoints = checkpoints
        self._episodes = episodes
        self._janitor = janitor
        self._events = events
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._drains = job.engine.during_update == "drain"
        self._keeps_calls = job.engine.during_update == "continue"
        self._collecting_since = time.monotonic()
        self.batches = batches
        self.supervisor = Supervisor(job.limits.update_silence_s, self._on_progress, worker_command)
        self.state = EngineState.OFFLINE
        self.cause = "not started"
        self.weight_version = batches.step
        self.restarts = 0
        self.loaded: protocol.Loaded | None = None

    @property
    def active(self) -> bool:
        """True while the loop runs. It ends when it is stopped and when it fails."""
        return bool(self._tasks) and not self._tasks[0].done()

    def start(self) -> None:
        """Begins to boot. Does nothing while the loop runs."""
        if self.active:
            return
        if self._stopping:
            raise ConflictError("the engine is being stopped; start it when it is offline")
        for task in self._tasks:
            task.cancel()  # a loop that failed leaves its janitor at work
        self.restarts = 0
        self.state, self.cause = EngineState.BOOTING, "starting"
        self._tasks = [
            asyncio.create_task(self._run(), name="conductor"),
            asyncio.create_task(self._janitor.work(lambda: self.weight_version), name="janitor"),
            asyncio.create_task(self.supervisor.watch(), name="worker-watch"),
        ]

    async def stop(self, cause: str) -> None:
        """Ends the loop and the worker. A step that is cut off is done again at the next start. Again is harmless."""
        if not self._tasks:
            return
        self._stopping = True
        try:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self.state, self.cause = EngineState.OFFLINE, cause
            self.supervisor.refuse_all(UnavailableError(f"the engine is offline: {cause}", retry_after_s=5.0))
            await self.supervisor.shut_down()
            self._tasks = []
            await self._enter_at_last(EngineState.OFFLINE, cause)
        finally:
            self._stopping = False

    def admit(self, kind: EpisodeKind) -> None:
        """Raises `UnavailableError` unless such an episode may be opened now, `EngineFailedError` if none ever may."""
        if self.state in (_ROLLING if kind is EpisodeKind.TRAIN and self._drains else _SERVING):
            return
        self.require_serving()
        raise UnavailableError(f"the server is {self.state}: {self.cause}", retry_after_s=1.0)

    def require_serving(self) -> None:
        """Raises unless calls are answered, now or after a wait that ends by itself."""
        if self.state is EngineState.FAILED:
            raise EngineFailedError(f"the engine failed: {self.cause}")
        if self.state is EngineState.OFFLINE:
            raise UnavailableError(f"the engine is offline: {self.cause}", retry_after_s=5.0)

    async def _run(self) -> None:
        try:
            while True:
                try:
                    await self._live()
                except (DiskFullError, WorkerOutOfRoomError) as error:
                    await self._wait_for_room(error)
        except AjetError as error:
            log.error("training stopped: %s", error.message)
            await self._fail(error.message)
        except Exception as error:
            # The boundary of the task: a mistake of ours must be seen as the cause, not as a state that never ends.
            log.exception("training stopped")
            await self._fail(f"{type(error).__name__}: {error}")

    async def _live(self) -> None:
        """Boots and cycles, with one worker after the other."""
        while True:
            try:
                await self._boot()
                self._collecting_since = time.monotonic()
                while True:
                    await self._cycle()
            except (WorkerRefusedError, WorkerOutOfRoomError):
                raise
            except EngineFailedError as error:
                await self._replace_worker(error)

    async def _wait_for_room(self, error: AjetError) -> None:
        """A disk may be full for days and is not given up: what is due stays due, and the status names the cause."""
        log.error("waiting for room on the disk: %s", error.message)
        # Told by hand: the ledger may be what cannot be written.
        self.state, self.cause = EngineState.BOOTING, f"waiting for room on the disk: {error.message}"
        await self._episodes.changes.notify()
        await asyncio.sleep(_ROOM_EVERY_S)

    async def _fail(self, cause: str) -> None:
        await self.supervisor.shut_down()
        self.state, self.cause = EngineState.FAILED, cause
        self.supervisor.refuse_all(EngineFailedError(f"the engine failed: {cause}"))
        await self._enter_at_last(EngineState.FAILED, cause)

    async def _replace_worker(self, error: EngineFailedError) -> None:
        self.restarts += 1
        log.warning("%s", error.message)
        if self.restarts > self._job.limits.max_worker_restarts:
            raise EngineFailedError(
                f"{error.message}; gave up after {self.restarts - 1} restarts (limits.max_worker_restarts)"
            )
        await self._enter(EngineState.BOOTING, f"restarting: {error.message}")
        await self._events.emit(WorkerRestarted(reason=error.message, restarts=self.restarts))

    async def _boot(self) -> None:
        await self._enter(EngineState.BOOTING, f"loading {self._job.model.path}")
        load = protocol.Load(self._job.model_dump_json().encode(), str(self._checkpoints))
        self.loaded = await self.supervisor.start(load, self._job.limits.boot_timeout_s)
        await self._reconcile(self.loaded)
        await self._sync()

    async def _reconcile(self, loaded: protocol.Loaded) -> None:
        """Makes ledger and checkpoint agree, and redoes a batch that was cut off."""
        planned = self.batches.reread()
        if planned and loaded.step == planned.step and loaded.last_batch_id == planned.batch_id:
            report = StepReport.model_validate_json(loaded.last_report or b"")
            await self._record_step(planned, report, str(self._checkpoints), rollout_s=0.0)
            return
        if loaded.step != self.batches.step:
            raise StorageError(
                f"the newest checkpoint is of step {loaded.step}, but the ledger counts {self.batches.step} steps; put "
                f"the missing checkpoint back into {self._checkpoints}, or start with another data folder"
            )
        if planned:
            await self._enter(EngineState.UPDATING, f"doing step {planned.step} again: it was cut off")
            await self._train(planned, rollout_s=0.0)

    async def _cycle(self) -> None:
        await self._enter(EngineState.ROLLING, "collecting episodes")
        await self.supervisor.open_gate()
        await self.supervisor.while_alive(self._episodes.changes.until(lambda: self.batches.ready))
        if self._drains:
            await self._enter(EngineState.DRAINING, "a batch is complete; open episodes may finish")
            await self.supervisor.while_alive(self._drain())
        planned = await self._plan()
        if planned is None:
            return
        bound_at = time.monotonic()
        await self._train(planned, bound_at - self._collecting_since)
        await self._sync()
        self._collecting_since = time.monotonic() if self._drains else bound_at

    async def _drain(self) -> None:
        deadline = time.monotonic() + self._job.limits.drain_timeout_s
        await self._episodes.changes.until(lambda: not self._episodes.open_train_count, deadline)
        await self._hold_calls(deadline)

    async def _hold_calls(self, deadline: float) -> None:
        """Returns when no call runs: those that still do at the deadline, in monotonic seconds, are recalled."""
        await self.supervisor.close_gate(max(deadline - time.monotonic(), _MIN_PATIENCE_S))

    async def _plan(self) -> PlannedBatch | None:
        bound = await self.batches.plan(self.weight_version)
        if bound is None:
            return None
        planned, episodes = bound
        await self._enter(EngineState.UPDATING, f"step {planned.step} on {episodes} episodes")
        return planned

    async def _train(self, planned: PlannedBatch, rollout_s: float) -> None:
        episodes = await self.batches.rows(planned)
        with self._episodes.versions.keeping() as kept:
            updated = await self.supervisor.update(protocol.Update(planned.batch_id, planned.step, episodes, kept))
        report = StepReport.model_validate_json(updated.report)
        await self._record_step(planned, report, updated.checkpoint, rollout_s)

    async def _record_step(self, planned: PlannedBatch, report: StepReport, checkpoint: str, rollout_s: float) -> None:
        await self.batches.record(planned, report, checkpoint, rollout_s)
        self.restarts = 0

    async def _sync(self) -> None:
        running = 0 if self._keeps_calls else self.supervisor.in_worker
        first = f", once {running} running calls have ended on the old one" if running else ""
        await self._enter(EngineState.SYNCING, f"the engine takes weight version {self.batches.step}{first}")
        if not self._keeps_calls:
            deadline = time.monotonic() + self._job.limits.drain_timeout_s
            await self.supervisor.while_alive(self._hold_calls(deadline))
        synced = await self.supervisor.sync(self.batches.step, keep_calls=self._keeps_calls)
        self.weight_version = synced.weight_version
        await self.batches.set_aside(self.weight_version)
        await self._events.emit(
            WeightsSynced(
                weight_version=synced.weight_version,
                probe_error=synced.probe_error,
                probe_tolerance=synced.probe_tolerance,
                seconds=synced.seconds,
            )
        )

    async def _enter(self, state: EngineState, cause: str) -> None:
        self.state, self.cause = state, cause
        log.info("%s: %s", state, cause)
        await self._episodes.changes.notify()
        await self._events.emit(
            StateChanged(state=state, cause=cause, step=self.batches.step, weight_version=self.weight_version)
        )

    async def _enter_at_last(self, state: EngineState, cause: str) -> None:
        """Enters a state in which the loop ends: it is entered even if the disk refuses to record it."""
        try:
            await self._enter(state, cause)
        except StorageError as error:
            log.error("%s", error.message)

    def _on_progress(self, message: protocol.Progress) -> None:
        step = self.batches.step + 1
        self._events.post_progress(
            UpdateProgress(step=step, stage=message.stage, done=message.done, total=message.total)
        )
