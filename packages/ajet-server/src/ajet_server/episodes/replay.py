"""Replays a ledger under a batch policy: when would each update have happened, and on which episodes?

The decisions are those of the live server (`Waiting`); the episodes come when they came. What cannot be known is left
out: under another policy agents would have met other weights, and other episodes would have been opened. An update
takes no time here, and a drain only waits for the episodes that are open when it begins.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ajet_core.condition import Facts, durations
from ajet_core.config import Job
from ajet_server.capture.history import Called, Closed, History, Occurrence, Opened
from ajet_server.episodes.policies import Decision
from ajet_server.episodes.waiting import Waiting

_SOON_S = 1e-3
"""How long after a bound is reached it is looked at whether it is passed, seconds: Unix times are not exact to less."""


@dataclass(frozen=True, slots=True)
class Update:
    """An update that would have happened.

    Attributes:
        due_at: when the condition held, Unix time.
        at: when open episodes had finished, or `limits.drain_timeout_s` was over, and the batch was taken; at once
            where the job does not drain.
        episode_ids: its episodes, in the order of the policy.
        groups: how many groups they are of.
        facts: at `due_at`.
    """

    due_at: float
    at: float
    episode_ids: tuple[str, ...]
    groups: int
    facts: Facts


@dataclass(frozen=True, slots=True)
class Replayed:
    """The updates in order, and what the policy says when the ledger ends."""

    updates: tuple[Update, ...]
    left: Decision


@dataclass(slots=True)
class _Drain:
    due: Decision
    due_at: float
    deadline: float
    open: set[str]


def replay(history: History, job: Job) -> Replayed:
    """Returns what the server would have done under `job.batch`.

    Args:
        history: of a ledger.
        job: its `batch`, `engine.during_update`, `limits.drain_timeout_s` and `limits.lease_s` are used.
    """
    run = _Replay(job)
    for occurrence in history.occurrences:
        run.go_on(occurrence.at)
        run.take_in(occurrence)
        run.look(occurrence.at)
    run.go_on(history.end)
    return Replayed(tuple(run.updates), run.waiting.decision(history.end))


class _Replay:
    def __init__(self, job: Job) -> None:
        self._job = job
        self.waiting = Waiting(job.batch, job.limits.lease_s)
        self.updates: list[Update] = []
        self._versions: dict[str, int] = {}
        self._clients: dict[str, str] = {}
        self._drain: _Drain | None = None
        self._durations = durations(job.batch.condition)
        self._now = 0.0

    def take_in(self, occurrence: Occurrence) -> None:
        """Does what the pool does when it happens."""
        version = self.waiting.weight_version
        match occurrence:
            case Opened(at, episode_id, client_id):
                self._clients[episode_id], self._versions[episode_id] = client_id, version
                self.waiting.clients.opened(client_id, at)
            case Called(_, episode_id):
                self._versions[episode_id] = version
            case Closed(at, episode_id, row):
                self.waiting.clients.closed(self._clients.pop(episode_id), at)
                oldest = self._versions.pop(episode_id)
                if row is not None:
                    self.waiting.add(replace(row, oldest_version=oldest))
                    self._set_aside()
            case said:
                self.waiting.clients.say(said.client_id, said.ready, said.at)

    def go_on(self, until: float) -> None:
        """Lets time pass, and looks wherever time alone may change the decision."""
        while (instant := min((at for at in self._instants() if at > self._now), default=until)) < until:
            self.look(instant)
        self._now = max(self._now, until)

    def _instants(self) -> Iterator[float]:
        if self._drain is not None:
            yield self._drain.deadline
            return
        complete_at = self.waiting.census().complete_at
        if complete_at is not None:
            yield from (complete_at + duration + _SOON_S for duration in self._durations)
        if self._job.batch.asks_clients:
            yield from (at + _SOON_S for at in self.waiting.clients.lapses())

    def look(self, now: float) -> None:
        """Begins a drain, or ends it with an update, as often as there is reason to."""
        self._now = max(self._now, now)
        while self._begin_drain() or self._end_drain():
            pass

    def _begin_drain(self) -> bool:
        if self._drain is not None:
            return False
        decision = self.waiting.decision(self._now)
        if decision.ready:
            waits = self._job.engine.during_update == "drain"
            deadline = self._now + (self._job.limits.drain_timeout_s if waits else 0.0)
            self._drain = _Drain(decision, self._now, deadline, set(self._clients))
        return decision.ready

    def _end_drain(self) -> bool:
        drain = self._drain
        if drain is None or (drain.open & self._clients.keys() and self._now < drain.deadline):
            return False
        self._drain = None
        take = self.waiting.decision(self._now).take
        if take:
            self._update(drain, take)
        return bool(take)

    def _update(self, drain: _Drain, take: tuple[str, ...]) -> None:
        groups = len({self.waiting.group_of(episode_id) for episode_id in take})
        self.updates.append(Update(drain.due_at, self._now, take, groups, drain.due.facts))
        for episode_id in take:
            self.waiting.drop(episode_id)
        self.waiting.begin_batch()
        self.waiting.clients.begin_anew()
        self.waiting.weight_version += 1
        self._set_aside()

    def _set_aside(self) -> None:
        rows = self.waiting.unusable()
        self.waiting.remember(rows)
        for row in rows:
            self.waiting.drop(row.episode_id)
