"""The pool: which groups have free slots, and which finished episodes wait for a batch.

A mirror in memory of what the ledger holds; everything here is synchronous, so between two awaits it is consistent.
A group has `group_size` slots. An open or a finished episode holds one; an aborted, expired or stale one frees it, and
the next rollout of that group refills just that slot.
"""

import time
from collections import Counter
from dataclasses import dataclass, field, replace

from ajet_core.config import BatchConfig
from ajet_core.errors import ConflictError, RequestError, UnavailableError
from ajet_core.ids import new_group_id
from ajet_core.status import SourceView
from ajet_server.capture.records import EpisodeRecord, PoolRow
from ajet_server.episodes.clients import Agreement
from ajet_server.episodes.policies import Decision
from ajet_server.episodes.waiting import Waiting

_NEXT_ROLLOUT_S = 5.0


@dataclass(slots=True)
class Group:
    """Rollouts of one task that are compared with each other."""

    id: str
    task_id: str
    named_by_client: bool
    source: str | None = None
    open: set[str] = field(default_factory=set[str])
    finished: set[str] = field(default_factory=set[str])
    doubtful: set[str] = field(default_factory=set[str])
    """Open ones that nobody waits for: they are in doubt."""
    touched: float = 0.0
    """Monotonic seconds of the last change."""

    @property
    def awaited(self) -> bool:
        """Whether an open episode may finish any moment."""
        return bool(self.open - self.doubtful)

    @property
    def size(self) -> int:
        """Slots held."""
        return len(self.open) + len(self.finished)


class Pool:
    """Groups and finished episodes of the train kind. Eval episodes never come here.

    Args:
        config: the job's batch policy.
        quiet_s: how long a group, or a client, that nobody hears of is still waited for, seconds.
    """

    def __init__(self, config: BatchConfig, quiet_s: float) -> None:
        self._config = config
        self._quiet_s = quiet_s
        self._groups: dict[str, Group] = {}
        self._client_of: dict[str, str] = {}
        self._waiting = Waiting(config, quiet_s)

    @property
    def rows(self) -> list[PoolRow]:
        """Finished episodes that wait, oldest first."""
        return self._waiting.rows

    @property
    def groups(self) -> list[Group]:
        """Groups that hold a slot."""
        return list(self._groups.values())

    @property
    def weight_version(self) -> int:
        """The version that is served, which staleness is counted from."""
        return self._waiting.weight_version

    @weight_version.setter
    def weight_version(self, version: int) -> None:
        self._waiting.weight_version = version

    @property
    def asks_clients(self) -> bool:
        """True when the policy may depend on what clients say."""
        return self._config.asks_clients

    def decision(self) -> Decision:
        """What the batch policy says now."""
        return self._waiting.decision(time.monotonic())

    def agreement(self) -> Agreement:
        """Who agrees to an update now; nobody where the policy asks nobody."""
        return self._waiting.clients.agreement(time.monotonic()) if self.asks_clients else Agreement()

    def sources(self) -> list[SourceView]:
        """What each source gives to the next update; empty without shares."""
        complete, open_of = self._waiting.census().by_source, Counter[str | None]()
        for group in self._groups.values():
            open_of[group.source] += len(group.open)
        return [
            SourceView(source=name, quota=quota, complete=complete.get(name, 0), open_episodes=open_of[name])
            for name, quota in self._config.quotas.items()
        ]

    def say(self, client_id: str, ready: bool, at: float) -> None:
        """A client agreed to an update, or took it back, at a Unix time."""
        self._waiting.clients.say(client_id, ready, _monotonic(at))

    def begin_update(self) -> None:
        """A batch is being bound to its episodes: what clients said until now has had its effect."""
        self._waiting.clients.begin_anew()

    def join(
        self, group_id: str | None, task_id: str, episode_id: str, client_id: str, source: str | None = None
    ) -> str:
        """Gives the episode a slot and returns the id of its group.

        Raises:
            RequestError: the job has shares by source, and this source has none.
            ConflictError: the named group is full, or belongs to another task or source.
            UnavailableError: the pool is full, or the groups of the next batch, or its source's, are all under way.
        """
        self._refuse_source(source)
        if len(self._waiting) >= self._config.max_pool_episodes:
            raise UnavailableError(
                f"the pool holds {len(self._waiting)} finished episodes, its bound (batch.max_pool_episodes); "
                f"waiting for: {self.decision().waiting_for}",
                retry_after_s=1.0,
            )
        named = group_id is not None
        group = self._named_group(group_id, task_id, source) if group_id else self._group_with_room(task_id, source)
        if group is None:
            self._refuse_surplus(source)
            group = Group(group_id or new_group_id(), task_id, named, source)
            self._groups[group.id] = group
        self._hold(group, episode_id, client_id)
        return group.id

    def restore_open(self, record: EpisodeRecord) -> None:
        """Puts back an episode that was open when the server stopped."""
        self._hold(self._group(record), record.id, record.client_id)

    def _hold(self, group: Group, episode_id: str, client_id: str) -> None:
        group.open.add(episode_id)
        group.touched = time.monotonic()
        self._client_of[episode_id] = client_id
        self._waiting.clients.opened(client_id, group.touched)

    def doubt(self, group_id: str, episode_id: str) -> None:
        """An open episode is in doubt: it keeps its slot, and nobody waits for it, or for its client."""
        self._groups[group_id].doubtful.add(episode_id)
        self._close(episode_id)

    def leave(self, group_id: str, episode_id: str) -> None:
        """Frees the slot of an episode that was aborted, expired or set aside."""
        self._waiting.drop(episode_id)
        self._close(episode_id)
        group = self._groups.get(group_id)
        if group is None:
            return
        group.open.discard(episode_id)
        group.doubtful.discard(episode_id)
        group.finished.discard(episode_id)
        group.touched = time.monotonic()
        if group.size == 0:
            del self._groups[group_id]

    def _close(self, episode_id: str) -> None:
        """An open episode is open no more; of others it is known already."""
        client_id = self._client_of.pop(episode_id, None)
        if client_id is not None:
            self._waiting.clients.closed(client_id, time.monotonic())

    def finish(self, row: PoolRow) -> None:
        """Takes a finished episode, `finished_at` in Unix time."""
        group = self._group(row)
        group.open.discard(row.episode_id)
        group.doubtful.discard(row.episode_id)
        group.finished.add(row.episode_id)
        group.touched = time.monotonic()
        finished_at = _monotonic(row.finished_at)
        self._close(row.episode_id)
        self._waiting.clients.heard(row.client_id, finished_at)
        self._waiting.add(replace(row, finished_at=finished_at))

    def take(self, episode_ids: tuple[str, ...]) -> None:
        """Removes the episodes that a batch took."""
        for episode_id in episode_ids:
            self.leave(self._waiting.group_of(episode_id), episode_id)
        self._waiting.begin_batch()

    def unusable(self) -> list[PoolRow]:
        """Episodes that no batch will take: older than `max_staleness` allows, or of an uninformative group."""
        return self._waiting.unusable()

    def why_unusable(self, row: PoolRow) -> str:
        """Returns why no batch will take one of these."""
        return self._waiting.why_unusable(row)

    def set_aside(self, rows: list[PoolRow]) -> None:
        """Removes episodes that no batch will take, and remembers how many of their groups were uninformative."""
        self._waiting.remember(rows)
        for row in rows:
            self.leave(row.group_id, row.episode_id)

    def _group(self, member: EpisodeRecord | PoolRow) -> Group:
        new = Group(member.group_id, member.task_id, member.group_named, member.source)
        return self._groups.setdefault(member.group_id, new)

    def _refuse_source(self, source: str | None) -> None:
        shares = self._config.sources
        if shares is not None and source not in shares:
            given = "is not given" if source is None else f"{source!r} has no share"
            raise RequestError(f"source: {given}; batch.sources has {', '.join(shares)}", field="source")

    def _named_group(self, group_id: str, task_id: str, source: str | None) -> Group | None:
        group = self._groups.get(group_id)
        if group is None:
            return None
        if group.task_id != task_id:
            raise ConflictError(
                f"group_id: group {group_id} belongs to task {group.task_id!r}, not {task_id!r}", field="group_id"
            )
        if group.source != source:
            raise ConflictError(
                f"group_id: group {group_id} belongs to source {group.source!r}, not {source!r}", field="group_id"
            )
        if group.size >= self._config.group_size:
            raise ConflictError(
                f"group_id: group {group_id} has all its {self._config.group_size} episodes (batch.group_size); "
                "begin a new group",
                field="group_id",
            )
        return group

    def _group_with_room(self, task_id: str, source: str | None) -> Group | None:
        """A group of task and source that has a free slot: one of the server's, or one that its client left behind."""
        now = time.monotonic()
        for group in self._groups.values():
            same = (group.task_id, group.source) == (task_id, source)
            room = same and group.size < self._config.group_size
            left = not group.awaited and now - group.touched >= self._quiet_s
            if room and (left or not group.named_by_client):
                return group
        return None

    def _refuse_surplus(self, source: str | None) -> None:
        """Refuses a group beyond those of the next batch: its rollouts would be off-policy when their turn comes.

        An incomplete group that nobody works on is not counted: its client may be gone, and nobody must wait for it.
        Where the server chose the group, its next rollout may be just about to come, so there it waits a moment.
        With shares by source, each source is bounded by its own, so that a fast one leaves the others their place.
        """
        quotas = self._config.quotas
        bound = quotas[source] if quotas and source is not None else self._config.bound
        if bound is None:
            return
        groups = [group for group in self._groups.values() if not quotas or group.source == source]
        now = time.monotonic()
        if self._config.policy == "episodes":
            held = sum(group.size - len(group.doubtful) for group in groups)
        else:
            held = sum(1 for group in groups if self._alive(group, now))
        if held >= bound:
            kind = self._config.policy if self._config.policy in ("episodes", "informative_groups") else "groups"
            of_source = f" of source {source!r}" if quotas else ""
            raise UnavailableError(
                f"the {kind}{of_source} of the next batch are all under way ({held} of {bound}); "
                f"waiting for: {self.decision().waiting_for}",
                retry_after_s=1.0,
            )

    def _alive(self, group: Group, now: float) -> bool:
        complete = len(group.finished) >= self._config.group_size
        expected = not group.named_by_client and now - group.touched < _NEXT_ROLLOUT_S
        return group.awaited or complete or expected


def _monotonic(unix: float) -> float:
    """Monotonic seconds of a Unix time. Only ages go from clock to clock, and none is negative: clocks jump."""
    return time.monotonic() - max(time.time() - unix, 0.0)
