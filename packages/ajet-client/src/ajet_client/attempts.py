"""The attempts at one slot of a run; shared by both runners."""

import inspect
import logging
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from ajet_client.clock import Clock
from ajet_client.report import EpisodeRecord, RunSettings, Slot
from ajet_core.episode import EpisodeKind
from ajet_core.errors import ConflictError, RewardError

logger = logging.getLogger("ajet_client")

E = TypeVar("E")


class AgentFailedError(Exception):
    """An agent outside this process came to no reward; the message says why, and a note has its traceback, if any."""


class Attempted(Protocol):
    """What is attempted: an episode, or a team of them."""

    @property
    def id(self) -> str:
        """Id of the episode."""
        ...

    @property
    def group_id(self) -> str:
        """Its group."""
        ...

    @property
    def kind(self) -> EpisodeKind:
        """`train` or `eval`."""
        ...

    @property
    def recorded_reward(self) -> float | None:
        """The reward set so far."""
        ...

    @property
    def metrics(self) -> dict[str, float]:
        """The further numbers set so far."""
        ...

    def reward(self, value: Any, /) -> None:
        """Records the reward."""
        ...


class Attempts:
    """What became of a slot so far. An attempt is another episode in the same group, not a retry of requests.

    Attributes:
        slot: what to open next.
    """

    def __init__(self, slot: Slot, settings: RunSettings, clock: Clock) -> None:
        self.slot = slot
        self._limit = settings.attempts
        self._clock = clock
        self._began = clock.now()
        self._episode: Attempted | None = None
        self._count = 0
        self._error: str | None = None

    def opened(self, episode: Attempted) -> None:
        """Notes a new attempt."""
        self._episode = episode
        self._count += 1
        self._error = None

    def refused(self, error: Exception) -> bool:
        """Notes that an opening failed. Returns whether to open another instead.

        A group that nobody worked on for a lease is open to other clients. If they have filled it, the server finds
        another place for the episode.
        """
        named = self.slot.group_id is not None
        if not (named and isinstance(error, ConflictError) and error.field != "request_id"):
            return False
        logger.warning("an episode is opened without its group: %s", error)
        self.slot = Slot(self.slot.task, None)
        return True

    def withdrawn(self) -> None:
        """Notes that the agent could not be begun, for a reason that says nothing about the task: no attempt."""
        self._count -= 1

    def failed(self, error: Exception) -> bool:
        """Notes how the attempt failed. Returns whether there may be another."""
        self._error = f"{type(error).__name__}: {error}"
        last = self._count >= self._limit
        level = logging.WARNING if last else logging.INFO
        ours = isinstance(error, AgentFailedError)  # our own lines say nothing about where the mistake is
        notes = "\n".join(["", *getattr(error, "__notes__", [])]) if ours else ""
        where = error if self._count == 1 and not ours else None  # told once an episode
        logger.log(level, "attempt %d of %d failed: %s%s", self._count, self._limit, self._error, notes, exc_info=where)
        return not last

    def record(self) -> EpisodeRecord:
        """Returns how the slot ended."""
        episode = self._episode
        if episode is None:
            raise RuntimeError("there was no attempt")
        named = self.slot.group_id is not None
        return EpisodeRecord(
            task=self.slot.task,
            group_id=episode.group_id,
            episode_id=episode.id,
            kind=episode.kind,
            reward=episode.recorded_reward if self._error is None else None,
            metrics=episode.metrics if self._error is None else {},
            attempts=self._count,
            error=f"{self._error}; {_short(episode)}" if self._error is not None and named else self._error,
            seconds=self._clock.now() - self._began,
            group_named=named,
        )


def _short(episode: Attempted) -> str:
    return f"no attempt is left, so group {episode.group_id} stays short of it"


def call(function: Callable[[E], object], episode: E) -> object:
    """Calls an agent's function; one that is `async` runs in an event loop of its own."""
    returned = function(episode)
    if not inspect.iscoroutine(returned):
        return returned
    import asyncio  # 30 ms that others need not pay

    return asyncio.run(returned)


def adopt(episode: Attempted, returned: object) -> None:
    """Takes what an agent returned for its reward, unless it set one itself. Raises `RewardError` if there is none."""
    if returned is not None:
        episode.reward(returned)
    elif episode.recorded_reward is None:
        raise RewardError("the agent returned None and called no episode.reward(...)", field="reward")
