"""Episodes for people: which there are, and what one of them holds."""

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ajet_core.episode import EpisodeKind, EpisodeStatus
from ajet_core.errors import NotFoundError
from ajet_server.capture.calls import WholeCall, whole_calls
from ajet_server.capture.reading import snapshot

_PAGE = 500


@dataclass(frozen=True, slots=True)
class EpisodeFilter:
    """Which episodes are meant; what is left out does not matter.

    Attributes:
        statuses: one of these.
        kind: train or eval.
        group_id: the group.
        task_id: the task.
    """

    statuses: tuple[EpisodeStatus, ...] = ()
    kind: EpisodeKind | None = None
    group_id: str | None = None
    task_id: str | None = None

    def where(self) -> tuple[str, list[str]]:
        """Returns an SQL condition on `episodes`, and its parameters."""
        named = {"kind": self.kind, "group_id": self.group_id, "task_id": self.task_id}
        given = {name: str(value) for name, value in named.items() if value is not None}
        parts = [f"{name} = ?" for name in given]
        if self.statuses:
            parts.append(f"status IN ({', '.join('?' * len(self.statuses))})")
        return " AND ".join(parts) or "1", [*given.values(), *map(str, self.statuses)]


@dataclass(frozen=True, slots=True)
class EpisodeLine:
    """One episode without its calls.

    Attributes:
        weight_version: under which it was opened.
        oldest_version: the oldest among its calls; None without one.
        newest_version: the newest.
        step: of the batch that took it.
        stale: set aside, no batch will take it.
        union_id: the union that it was prepared for.
        rewards: by role; empty without roles.
        dropped_at: when what its calls held was dropped (`retention`), None while it is there.

    The others are those of `EpisodeView`, and the seconds since 1970 of opening and closing.
    """

    episode_id: str
    attempt_id: str
    group_id: str
    task_id: str
    source: str | None
    kind: str
    status: str
    client_id: str
    reward: float | None
    rewards: dict[str, float]
    metrics: dict[str, float]
    reason: str | None
    calls: int
    prompt_tokens: int
    completion_tokens: int
    weight_version: int
    oldest_version: int | None
    newest_version: int | None
    opened_at: float
    closed_at: float | None
    batch_id: str | None
    step: int | None
    stale: bool
    union_id: str | None
    dropped_at: float | None


_LINE = """
    SELECT e.id AS episode_id, e.attempt_id, e.group_id, e.task_id, e.source, e.kind, e.status, e.client_id, e.reward,
        e.rewards, e.metrics, e.reason, count(c.seq) AS calls, coalesce(sum(c.prompt_tokens), 0) AS prompt_tokens,
        coalesce(sum(c.completion_tokens), 0) AS completion_tokens, e.weight_version,
        min(c.weight_version) AS oldest_version,
        max(coalesce(json_extract(c.version_spans, '$[#-1][1]'), c.weight_version)) AS newest_version,
        e.opened_at, e.closed_at, e.batch_id, b.step, e.stale,
        (SELECT p.union_id FROM promises p WHERE p.episode_id = e.id) AS union_id, e.dropped_at
    FROM episodes e LEFT JOIN calls c ON c.episode_id = e.id LEFT JOIN batches b ON b.id = e.batch_id
    WHERE e.id = ? GROUP BY e.id
"""


def episode_line(db: sqlite3.Connection, episode_id: str) -> EpisodeLine:
    """Returns one episode. Raises `NotFoundError`."""
    row = db.execute(_LINE, (episode_id,)).fetchone()
    if row is None:
        raise NotFoundError(f"there is no episode {episode_id} in this ledger")
    typed: dict[str, Any] = {name: json.loads(row[name]) for name in ("rewards", "metrics")}
    typed |= {"stale": bool(row["stale"])}
    return EpisodeLine(**{**dict(row), **typed})


def count_episodes(db: sqlite3.Connection, wanted: EpisodeFilter) -> int:
    """Returns how many there are."""
    where, values = wanted.where()
    return int(db.execute(f"SELECT count(*) FROM episodes WHERE {where}", values).fetchone()[0])  # noqa: S608 - our own


def newest_episodes(db: sqlite3.Connection, wanted: EpisodeFilter, limit: int) -> list[EpisodeLine]:
    """Returns those that were opened last, the newest first."""
    where, values = wanted.where()
    query = f"SELECT id FROM episodes WHERE {where} ORDER BY opened_at DESC, id DESC LIMIT ?"  # noqa: S608 - our own
    return [episode_line(db, row["id"]) for row in db.execute(query, [*values, limit]).fetchall()]


def episode_ids(db: sqlite3.Connection, wanted: EpisodeFilter) -> Iterator[str]:
    """The ids of the episodes as they were opened, page by page: no query stays open in between."""
    where, values = wanted.where()
    page_of = f"SELECT opened_at, id FROM episodes WHERE {where} AND (opened_at, id) > (?, ?)"  # noqa: S608 - our own
    query = f"{page_of} ORDER BY opened_at, id LIMIT ?"
    at, last = float("-inf"), ""
    while page := db.execute(query, [*values, at, last, _PAGE]).fetchall():
        yield from (row["id"] for row in page)
        at, last = page[-1]["opened_at"], page[-1]["id"]


def read_episode(db: sqlite3.Connection, episode_id: str) -> tuple[EpisodeLine, list[WholeCall]]:
    """Returns an episode and its calls, of one state of the ledger; without calls once what they held was dropped.

    Raises:
        NotFoundError: there is none.
        StorageError: its calls do not add up.
    """
    with snapshot(db):
        line = episode_line(db, episode_id)
        return line, whole_calls(db, episode_id) if line.dropped_at is None else []
