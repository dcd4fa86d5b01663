"""Puts the components together. The only file that knows every one of them.

DataDir ── Ledger ── EventLog                                             live as long as the server
              │
Runtime:   Pool ── Episodes ── Batches, Janitor ── Conductor ── Gateway  live as long as their job
                                                       │
                                                   Supervisor ── worker process (engine, trainer)
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ajet_core.config import Job
from ajet_core.errors import ConfigError, ConflictError, UnavailableError
from ajet_core.events import EngineState
from ajet_core.wire import JanitorView, PoolView, StatusView
from ajet_server.capture import records, steps
from ajet_server.capture.ledger import Ledger
from ajet_server.capture.pruner import Pruner
from ajet_server.capture.retention import Rule
from ajet_server.conductor import Conductor
from ajet_server.datadir import DataDir, read_job
from ajet_server.episodes.batches import Batches
from ajet_server.episodes.clients import Agreement
from ajet_server.episodes.janitor import Janitor
from ajet_server.episodes.keys import open_key_maker, open_token
from ajet_server.episodes.lifecycle import Episodes
from ajet_server.episodes.pool import Pool
from ajet_server.episodes.versions import NamedVersions
from ajet_server.gateway.answering import Answering
from ajet_server.gateway.prompts import Prompts
from ajet_server.gateway.service import Gateway
from ajet_server.models.folder import open_model_folder
from ajet_server.observe.bus import EventLog
from ajet_server.observe.metrics import Metrics
from ajet_server.observe.why import why
from ajet_server.settings import ServerSettings
from ajet_server.worker.process import WORKER_COMMAND

_FIXED = ("model.path", "method", "lora")
"""Fields of a job that its checkpoints depend on; the captured episodes depend on the first."""
_NO_JOB = "this server has no job yet: put one with PUT /api/job, then POST /api/start"


@dataclass(frozen=True, slots=True)
class Runtime:
    """The components of one job."""

    job: Job
    pool: Pool
    episodes: Episodes
    conductor: Conductor
    gateway: Gateway


class Server:
    """One swarm server. Made before the socket listens, so that a bad folder or job is told at the command line."""

    def __init__(self, settings: ServerSettings, worker_command: Sequence[str] = WORKER_COMMAND) -> None:
        self.settings = settings
        self._worker_command = worker_command
        self.on_shutdown: Callable[[], None] | None = None
        self.data_dir = DataDir(settings.data_dir)
        self._started_at = time.monotonic()
        self._runtime: Runtime | None = None
        try:
            self.ledger = Ledger(self.data_dir.ledger_file)
            self.keys = open_key_maker(self.data_dir.path)
            self.admin_token = open_token(self.data_dir.path, "admin")
            self.client_token = open_token(self.data_dir.path, "client")
        except BaseException:
            self.data_dir.close()
            raise
        self.events = EventLog(self.ledger)
        self.metrics = Metrics(self.status, self.janitor)
        try:
            job = settings.job or self._stored_job()
            if job is not None:
                self._take(*self._check(job))
        except BaseException:
            self.ledger.close()
            self.data_dir.close()
            raise

    @property
    def runtime(self) -> Runtime:
        """The present job's components. Raises `UnavailableError` while there is no job."""
        if self._runtime is None:
            raise UnavailableError(_NO_JOB)
        return self._runtime

    @property
    def has_job(self) -> bool:
        """True once a job was given."""
        return self._runtime is not None

    @property
    def state(self) -> EngineState:
        """State of the engine."""
        return self._runtime.conductor.state if self._runtime else EngineState.OFFLINE

    async def set_job(self, job: Job) -> None:
        """Takes a job while the engine is offline or failed.

        Raises:
            ConflictError: the engine runs.
            ConfigError: the model folder is unusable, or the job does not fit what this data folder holds.
        """
        if self._runtime and self._runtime.conductor.active:
            raise ConflictError(f"the engine is {self.state}; stop it before you change the job")
        job, prompts = await asyncio.to_thread(self._check, job)
        if self._runtime:
            if self._runtime.conductor.active:
                raise ConflictError(f"the engine is {self.state}; it was started while the job was checked")
            await self._runtime.episodes.turn_away()
            await self._runtime.conductor.stop("the job is being changed")
        self._take(job, prompts)

    def start(self) -> None:
        """Starts the engine."""
        self.runtime.conductor.start()

    async def stop(self, cause: str) -> None:
        """Stops the engine and keeps the server."""
        if self._runtime:
            await self._runtime.conductor.stop(cause)

    async def quit(self, cause: str) -> None:
        """Stops the engine for good, and answers all that wait: calls, openings, event streams."""
        await self.stop(cause)
        if self._runtime:
            await self._runtime.episodes.turn_away()
        await self.events.close()

    def request_shutdown(self) -> None:
        """Asks the process around this server to end in order."""
        if self.on_shutdown is None:
            raise ConflictError("this server runs inside another program, which has to end it")
        self.on_shutdown()

    async def close(self) -> None:
        """Stops everything in order."""
        try:
            await self.quit("the server is shutting down")
        finally:
            self.ledger.close()
            self.data_dir.close()

    def status(self) -> StatusView:
        """One look at everything."""
        runtime = self._runtime
        conductor = runtime.conductor if runtime else None
        supervisor = conductor.supervisor if conductor else None
        cause, pool = conductor.cause if conductor else _NO_JOB, self.pool_view()
        return StatusView(
            name=runtime.job.name if runtime else None,
            state=self.state,
            cause=cause,
            why=why(self.state, cause, pool),
            model=runtime.gateway.served_name if runtime else None,
            weight_version=conductor.weight_version if conductor else 0,
            step=conductor.batches.step if conductor else 0,
            pool=pool,
            last_step=conductor.batches.last_report if conductor else None,
            worker_pid=supervisor.pid if supervisor else None,
            worker_restarts=conductor.restarts if conductor else 0,
            requests_running=supervisor.in_worker if supervisor else 0,
            requests_waiting=supervisor.queued if supervisor else 0,
            requests_continued=supervisor.continued if supervisor else 0,
            requests_recalled=supervisor.recalled if supervisor else 0,
            uptime_s=time.monotonic() - self._started_at,
            data_dir=str(self.data_dir.path),
        )

    def janitor(self) -> JanitorView:
        """What the janitor did."""
        return self._runtime.episodes.diary.view() if self._runtime else JanitorView()

    def pool_view(self) -> PoolView:
        """What waits to be trained."""
        runtime = self._runtime
        decision = runtime.pool.decision() if runtime else None
        agreement = runtime.pool.agreement() if runtime else Agreement()
        return PoolView(
            open_episodes=runtime.episodes.open_count if runtime else 0,
            finished_episodes=len(runtime.pool.rows) if runtime else 0,
            stale_episodes=self.ledger.read_now(records.stale_count),
            groups_complete=decision.groups_complete if decision else 0,
            groups_open=sum(1 for group in runtime.pool.groups if group.open) if runtime else 0,
            ready=decision.ready if decision else False,
            waiting_for=decision.waiting_for if decision else _NO_JOB,
            clients_ready=list(agreement.ready),
            clients_awaited=list(agreement.awaited),
            in_doubt=runtime.episodes.unions.followed(only_in_doubt=True) if runtime else [],
            sources=runtime.pool.sources() if runtime else [],
        )

    def _stored_job(self) -> Job | None:
        return read_job(self.ledger.read_now(lambda db: steps.get_meta(db, "job")), self.ledger.file)

    def _check(self, job: Job) -> tuple[Job, Prompts]:
        """Returns the job with its model's absolute path. May take a second: large vocabularies load slowly."""
        folder = open_model_folder(job.model.path)
        job = job.model_copy(update={"model": job.model.model_copy(update={"path": str(folder.path)})})
        stored = self._stored_job()
        if stored is not None and self.ledger.read_now(records.holds_train_episodes):
            _refuse_other_model(stored, job, _FIXED if self.ledger.read_now(steps.step_count) else _FIXED[:1])
        return job, Prompts(folder, job.gateway)

    def _take(self, job: Job, prompts: Prompts) -> None:
        """Makes the components: in one go and after every earlier write, so that they restore what there is."""
        self.ledger.write_now(lambda db: steps.set_meta(db, "job", job.model_dump_json(exclude_unset=True)))
        pool = Pool(job.batch, quiet_s=job.limits.lease_s)
        versions = NamedVersions(self.data_dir.checkpoints, job.engine.eval_versions)
        episodes = Episodes(self.ledger, pool, self.keys, self.events, job.limits, versions)
        episodes.restore()
        batches = Batches(self.ledger, episodes, pool, self.events)
        janitor = Janitor(episodes, batches, Pruner(self.ledger, Rule.of(job)))
        conductor = Conductor(
            job, self.data_dir.checkpoints, episodes, batches, janitor, self.events, self._worker_command
        )
        name = job.model.served_name or Path(job.model.path).name
        answering = Answering(job, prompts, conductor, episodes, self.ledger, self.metrics)
        gateway = Gateway(job, name, prompts, conductor, self.ledger, answering)
        self._runtime = Runtime(job, pool, episodes, conductor, gateway)


def _refuse_other_model(stored: Job, job: Job, fixed: tuple[str, ...]) -> None:
    for field in fixed:
        before, now = _at(stored, field), _at(job, field)
        if before != now:
            raise ConfigError(
                f"{field}: this data folder was used with {before!r}, the job says {now!r}; use another data folder "
                "or the old value",
                field=field,
            )


def _at(job: Job, field: str) -> object:
    if field == "model.path":
        return job.model.path
    return job.adapter if field == "lora" else getattr(job, field)
