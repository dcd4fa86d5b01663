"""The bounded runner of the sync `Swarm`: agents in threads.

The calling thread reads the tasks and hands them out, one when a worker is free. Workers are daemon threads, so that a
hung agent cannot keep the process alive; agents that are processes are ended. At a Ctrl-C, or when no episode can be
opened, the calling thread cuts the openings that the server holds, aborts the open episodes, which makes the server
refuse their agents' calls, waits a little for the workers and raises.
"""

import logging
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Generic, Protocol, TypeVar

from pydantic import JsonValue

from ajet_client.attempts import Attempted, Attempts, adopt
from ajet_client.clock import Clock
from ajet_client.episode import describe
from ajet_client.progress import Show, expected_total, progress_bar
from ajet_client.report import EpisodeRecord, RunReport, RunSettings, Slot, new_report, slots
from ajet_client.source import BrokenAgentError
from ajet_client.tasks import TaskLike
from ajet_client.transport import Stop, StoppedError
from ajet_client.workers import Workers
from ajet_core.errors import AjetError


class Tried(Attempted, Protocol):
    """What a runner opens: an episode, or a team of them."""

    def abort(self, reason: str) -> None:
        """Gives it up."""
        ...


E = TypeVar("E", bound=Tried)
E_contra = TypeVar("E_contra", bound=Tried, contravariant=True)
E_co = TypeVar("E_co", bound=Tried, covariant=True)


class Opens(Protocol[E_co]):
    """Where a runner opens them: a swarm, or several together."""

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
        stop: Stop | None,
    ) -> AbstractContextManager[E_co]:
        """Opens one for a `with` block."""
        ...


class Runs(Protocol[E_contra]):
    """What runs them: see `agents.AgentBase`."""

    def wait_until_ready(self, stop: Stop) -> None:
        """Returns once there is code to run."""
        ...

    def run(self, episode: E_contra, stop: Stop) -> object:
        """Runs one and returns the reward, or None."""
        ...

    def close(self) -> None:
        """Ends what still runs."""
        ...


_GRACE_S = 5.0
"""How long stopped workers are waited for, seconds."""

logger = logging.getLogger("ajet_client")


class Runner(Generic[E]):
    """One call of `Swarm.run` or `Together.run`."""

    def __init__(self, swarm: Opens[E], agent: Runs[E], group_size: int, settings: RunSettings) -> None:
        self._swarm = swarm
        self._agent = agent
        self._group_size = group_size
        self._settings = settings
        self._report = new_report(settings)
        self._show: Show = lambda report: None
        self._open: set[E] = set()
        self._reporting = threading.Lock()
        self._stop = Stop()
        self._workers = Workers(settings.concurrency, self._serve)

    def run(self, tasks: Iterable[TaskLike]) -> RunReport:
        """Runs everything and returns the report."""
        total = expected_total(tasks, self._group_size)
        with progress_bar(self._settings.progress, total) as self._show:
            try:
                self._hand_out(slots(tasks, self._group_size))
            except BaseException as error:
                self._abandon(error)
                raise
            finally:
                self._workers.close()
                self._stop.close()
                self._agent.close()
        return self._report

    def _hand_out(self, source: Iterator[Slot]) -> None:
        self._workers.wait_for_one()
        for slot in source:
            self._workers.give(slot)
            self._workers.wait_for_one()
        self._workers.release_one()
        self._workers.wait_for_all()

    def _serve(self, slot: Slot) -> None:
        """Runs in a worker: tries a slot until it has a reward or no attempt is left."""
        attempts = Attempts(slot, self._settings, self._swarm.clock)
        while not self._attempt(attempts):
            if self._stop.is_set():
                return
        self._tell(attempts.record())

    def _attempt(self, attempts: Attempts) -> bool:
        """Returns whether the slot is through. Raises only if no episode could be opened."""
        episode = None
        try:
            self._agent.wait_until_ready(self._stop)
            with self._opened(attempts.slot) as episode:
                attempts.opened(episode)
                adopt(episode, self._agent.run(episode, self._stop))
        except BrokenAgentError:
            attempts.withdrawn()
            return False
        except Exception as error:
            if episode is not None:
                return not attempts.failed(error)
            if not attempts.refused(error):
                raise
            return False
        return True

    @contextmanager
    def _opened(self, slot: Slot) -> Generator[E]:
        task, settings = slot.task, self._settings
        with self._swarm.episode(
            task.data,
            kind=settings.kind,
            task_id=task.id,
            group_id=slot.group_id,
            weights=settings.weights,
            source=settings.source,
            wait=settings.wait_s,
            stop=self._stop,
        ) as episode:
            self._open.add(episode)
            try:
                if self._stop.is_set():
                    raise StoppedError(self._stop.reason)
                yield episode
            finally:
                self._open.discard(episode)

    def _tell(self, record: EpisodeRecord) -> None:
        with self._reporting:
            self._report.add(record)
            self._show(self._report)
            if self._settings.on_result is not None:
                self._settings.on_result(record)

    def _abandon(self, error: BaseException) -> None:
        """Stops opening, also what the server holds, aborts what is open and waits a little for the workers."""
        self._stop.reason = f"the run was stopped: {describe(error)}"
        self._stop.set()
        error.add_note(f"the run was stopped: {self._report}")
        try:
            for episode in list(self._open):
                episode.abort(self._stop.reason)
        except AjetError as trouble:
            logger.warning("open episodes are left to expire: %s", trouble)
        self._workers.join(_GRACE_S)
