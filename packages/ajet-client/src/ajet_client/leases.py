"""Heartbeats: open episodes are renewed in the background, so that a long tool run does not lose its lease.

`LeaseBook` decides who is due; `HeartbeatThread` and `HeartbeatTask` wait and send. Both exist only while an episode
is open. A heartbeat is sent three times per lease. Trouble on the way defers all of them a little (whoever is not
reachable for one is not for the others); a refusal means that the server closed the episode, which is then lost.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable

from ajet_client.api import Api
from ajet_client.episode import EpisodeBase
from ajet_client.plans import Plan
from ajet_core.errors import (
    AjetError,
    ConflictError,
    EpisodeClosedError,
    ForbiddenError,
    KeyRefusedError,
    NotFoundError,
)

logger = logging.getLogger("ajet_client")

_PER_LEASE = 3
_TROUBLE_S = 5.0
_REFUSED = (ConflictError, EpisodeClosedError, ForbiddenError, KeyRefusedError, NotFoundError)


class LeaseBook:
    """Which episodes are open, and when each must be renewed. Times are the clock's, in seconds.

    Episodes are opened and closed in any thread while another one renews them, so every change is made under a lock,
    and no call changes anything for an episode that was dropped meanwhile.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._due: dict[EpisodeBase, float] = {}

    def add(self, episode: EpisodeBase) -> None:
        """Begins to renew an episode."""
        due = self._next(episode, episode.grant.lease_s)
        with self._lock:
            self._due[episode] = due

    def drop(self, episode: EpisodeBase) -> None:
        """Ends it. Unknown episodes are ignored."""
        with self._lock:
            self._due.pop(episode, None)

    def clear(self) -> None:
        """Ends it for all."""
        with self._lock:
            self._due.clear()

    def first(self) -> EpisodeBase | None:
        """Returns the episode that is due first; None if none is open."""
        with self._lock:
            return min(self._due, key=self._due.__getitem__, default=None)

    def delay_s(self, episode: EpisodeBase) -> float:
        """Returns the seconds until an episode is due; 0 or less: now, or it is not in the book any more."""
        with self._lock:
            due = self._due.get(episode, 0.0)
        return due - self._api.clock.now()

    def beat(self, episode: EpisodeBase) -> Plan[None]:
        """Renews one episode."""
        try:
            lease = yield from self._api.heartbeat(episode.grant)
        except _REFUSED as error:
            self.drop(episode)
            episode.lose(error)
        except AjetError as error:
            logger.info("no heartbeat for %s: %s", episode.id, error)
            self.defer(episode.grant.lease_s)
        else:
            due = self._next(episode, lease.lease_s)
            with self._lock:
                if episode in self._due:
                    self._due[episode] = due

    def defer(self, lease_s: float) -> None:
        """Puts off whoever is due."""
        later = self._api.clock.now() + min(_TROUBLE_S, lease_s / (2 * _PER_LEASE))
        with self._lock:
            for episode, due in self._due.items():
                self._due[episode] = max(due, later)

    def _next(self, episode: EpisodeBase, lease_s: float) -> float:
        """Near an episode's longest duration the server grants ever shorter leases; a second is short enough."""
        least_s = min(1.0, episode.grant.lease_s / _PER_LEASE)
        return self._api.clock.now() + max(least_s, lease_s / _PER_LEASE)


class HeartbeatThread:
    """Renews the episodes of one `Swarm` in a daemon thread."""

    def __init__(self, book: LeaseBook, run: Callable[[Plan[None]], None]) -> None:
        self._book = book
        self._run = run
        self._changed = threading.Condition()
        self._alive = False

    def add(self, episode: EpisodeBase) -> None:
        """Begins to renew an episode."""
        with self._changed:
            self._book.add(episode)
            self._changed.notify()
            if not self._alive:
                self._alive = True
                threading.Thread(target=self._loop, name="ajet-heartbeats", daemon=True).start()

    def drop(self, episode: EpisodeBase) -> None:
        """Ends it."""
        with self._changed:
            self._book.drop(episode)
            self._changed.notify()

    def close(self) -> None:
        """Ends it for all."""
        with self._changed:
            self._book.clear()
            self._changed.notify()

    def _loop(self) -> None:
        while (episode := self._await_due()) is not None:
            try:
                self._run(self._book.beat(episode))
            except Exception:
                logger.exception("the heartbeat of %s failed", episode.id)
                self._book.defer(episode.grant.lease_s)

    def _await_due(self) -> EpisodeBase | None:
        with self._changed:
            while (episode := self._book.first()) is not None:
                delay_s = self._book.delay_s(episode)
                if delay_s <= 0:
                    return episode
                self._changed.wait(delay_s)
            self._alive = False
            return None


class HeartbeatTask:
    """Renews the episodes of one `AsyncSwarm` in a task."""

    def __init__(self, book: LeaseBook, run: Callable[[Plan[None]], Awaitable[None]]) -> None:
        self._book = book
        self._run = run
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, episode: EpisodeBase) -> None:
        """Begins to renew an episode."""
        self._book.add(episode)
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._loop(), name="ajet-heartbeats")

    def drop(self, episode: EpisodeBase) -> None:
        """Ends it."""
        self._book.drop(episode)
        self._changed.set()

    def close(self) -> None:
        """Ends it for all."""
        self._book.clear()
        self._changed.set()

    async def _loop(self) -> None:
        while (episode := await self._await_due()) is not None:
            try:
                await self._run(self._book.beat(episode))
            except Exception:
                logger.exception("the heartbeat of %s failed", episode.id)
                self._book.defer(episode.grant.lease_s)

    async def _await_due(self) -> EpisodeBase | None:
        while (episode := self._book.first()) is not None:
            delay_s = self._book.delay_s(episode)
            if delay_s <= 0:
                return episode
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), delay_s)
            except TimeoutError:
                continue
        return None
