"""The open episodes in memory, by id and by agent's key, and who waits for them to change."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from ajet_core.config import LimitsConfig
from ajet_core.episode import EpisodeKind
from ajet_server.capture.promises import Promise
from ajet_server.capture.records import CallsSoFar, EpisodeRecord

_LOOK_EVERY_S = 1.0
"""How often a wait looks again though nothing changed: a batch policy may tell the time."""


class Closing:
    """Whether an episode is closed, and who has to know at once. Callbacks are as those of a future."""

    def __init__(self) -> None:
        self._is_set = False
        self._callbacks: list[Callable[[Closing], None]] = []

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._is_set

    def set(self) -> None:
        """Tells everybody."""
        self._is_set = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def add_done_callback(self, callback: Callable[["Closing"], None]) -> None:
        """Calls it when it happens, or now if it has happened."""
        if self._is_set:
            callback(self)
        else:
            self._callbacks.append(callback)

    def remove_done_callback(self, callback: Callable[["Closing"], None]) -> None:
        """Does not call it any more."""
        if callback in self._callbacks:
            self._callbacks.remove(callback)


@dataclass(slots=True, eq=False, weakref_slot=True)
class OpenState:
    """An open episode in memory. Others may keep what belongs to it in a dictionary with weak keys.

    Attributes:
        record: as it was opened.
        lease_until: monotonic seconds.
        expires_at: monotonic seconds; no renewal goes beyond.
        next_seq: the `seq` of the next call.
        recorded: calls recorded.
        sampled: tokens sampled in them.
        in_flight: calls being generated; an episode does not expire while one runs.
        reserved: tokens that these may sample at most.
        oldest_version: the oldest weight version among its tokens.
        lock: held while it is being closed.
        closed: set once it is; ends the calls that still run.
        promise: what it is prepared with for a union, if it is; then it takes no more calls.
    """

    record: EpisodeRecord
    lease_until: float
    expires_at: float
    next_seq: int = 0
    recorded: int = 0
    sampled: int = 0
    in_flight: int = 0
    reserved: int = 0
    oldest_version: int | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    closed: Closing = field(default_factory=Closing)
    promise: Promise | None = None

    @property
    def takes_calls(self) -> bool:
        """Whether it is neither closed nor prepared."""
        return self.promise is None and not self.closed.is_set()

    @property
    def in_doubt(self) -> bool:
        """True when it waits for a decision that nobody has brought for a lease."""
        return self._waits and time.monotonic() > self.lease_until

    @property
    def _waits(self) -> bool:
        """True when another episode decides what becomes of it: then it must not expire by itself."""
        return self.promise is not None and self.promise.follows

    def why_due(self, limits: LimitsConfig) -> str | None:
        """Returns why the episode has to expire now, None while it does not."""
        now = time.monotonic()
        if self._waits:
            return None
        if now > self.expires_at:
            return f"older than limits.max_episode_s={limits.max_episode_s:g}"
        if now > self.lease_until and not self.in_flight:
            return f"no call and no heartbeat for limits.lease_s={limits.lease_s:g}"
        return None


class OpenBook:
    """Holds every open episode of the server."""

    def __init__(self, limits: LimitsConfig) -> None:
        self._limits = limits
        self._by_id: dict[str, OpenState] = {}
        self._by_key_hash: dict[str, OpenState] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, episode_id: str) -> bool:
        return episode_id in self._by_id

    @property
    def states(self) -> list[OpenState]:
        """A copy, so that it may change while one goes through it."""
        return list(self._by_id.values())

    @property
    def train_count(self) -> int:
        """Open train episodes: those that a drain waits for. Those in doubt may take for ever."""
        return sum(1 for state in self._by_id.values() if state.record.kind is EpisodeKind.TRAIN and not state.in_doubt)

    def held(self) -> Counter[tuple[str, EpisodeKind]]:
        """Open episodes of each client, by kind."""
        return Counter((state.record.client_id, state.record.kind) for state in self._by_id.values())

    def get(self, episode_id: str) -> OpenState | None:
        """Returns the open episode, None if it is not open."""
        return self._by_id.get(episode_id)

    def of_key(self, key_hash: str) -> OpenState | None:
        """Returns the open episode of an agent's key."""
        return self._by_key_hash.get(key_hash)

    def hold(self, record: EpisodeRecord, so_far: CallsSoFar) -> None:
        """Takes an episode in, with a whole lease and its whole time.

        After a restart too: how old it is then only the system's clock could tell, and one that jumped ahead would
        expire every open episode at once.
        """
        now = time.monotonic()
        expires_at = now + self._limits.max_episode_s
        state = OpenState(
            record,
            lease_until=min(now + self._limits.lease_s, expires_at),
            expires_at=expires_at,
            next_seq=so_far.next_seq,
            recorded=so_far.count,
            sampled=so_far.sampled,
            oldest_version=so_far.oldest_version,
        )
        self._by_id[record.id] = state
        self._by_key_hash[record.api_key_hash] = state

    def drop(self, state: OpenState) -> None:
        """Lets a closed episode go and ends its calls."""
        del self._by_id[state.record.id]
        del self._by_key_hash[state.record.api_key_hash]
        state.closed.set()

    def renew(self, state: OpenState) -> OpenState:
        """Renews the lease, as far as `limits.max_episode_s` allows."""
        state.lease_until = min(time.monotonic() + self._limits.lease_s, state.expires_at)
        return state


class Changes:
    """Counts what could let a waiting request go on, so that nobody polls and nobody misses anything."""

    def __init__(self) -> None:
        self._condition = asyncio.Condition()
        self._count = 0

    @property
    def count(self) -> int:
        """Look at it before the check; give it to `wait` after the check."""
        return self._count

    async def wait(self, seen: int, timeout_s: float) -> None:
        """Returns when `count` is no longer `seen`, or after `timeout_s`."""
        # Not `asyncio.wait_for`: before Python 3.12 it loses a cancellation that comes together with a change.
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._condition:
                await self._condition.wait_for(lambda: self._count != seen)

    async def until(self, met: Callable[[], bool], deadline: float = math.inf) -> None:
        """Returns when `met`, or at the deadline, in monotonic seconds. Asks at each change, and each second."""
        while True:
            seen, left = self._count, deadline - time.monotonic()
            if met() or left <= 0:
                return
            await self.wait(seen, min(left, _LOOK_EVERY_S))

    def mark(self) -> None:
        """Counts a change at the moment it is made; whoever makes it notifies soon.

        Else one that wakes for an earlier change would find a slot free before those whose turn it is.
        """
        self._count += 1

    async def notify(self) -> None:
        """An episode opened or closed, or the engine's state changed."""
        self.mark()
        async with self._condition:
            self._condition.notify_all()
