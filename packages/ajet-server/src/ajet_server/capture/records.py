"""Rows of the ledger as values, and the statements that read and write them."""

import json
import sqlite3
import time
from dataclasses import dataclass, field
from typing import Any

from ajet_core.episode import EpisodeKind, EpisodeStatus
from ajet_core.errors import EpisodeClosedError
from ajet_core.wire import EpisodeView
from ajet_server.capture.calls import call_rows
from ajet_server.worker.protocol import EpisodeRow


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """One episode as it was opened."""

    id: str
    attempt_id: str
    request_id: str
    group_id: str
    group_named: bool
    """True when the client chose the group."""
    task_id: str
    task: str
    kind: EpisodeKind
    client_id: str
    api_key_hash: str
    control_key_hash: str
    weight_version: int
    opened_at: float
    weights: int | None = None
    """The weight version that every call of it is sampled with; None is the one that is served at that moment."""
    source: str | None = None
    """Where its task comes from."""


@dataclass(frozen=True, slots=True)
class CallsSoFar:
    """What the recorded calls of an open episode amount to.

    Attributes:
        count: how many there are.
        next_seq: the `seq` that is free. It may exceed `count`: a call that failed leaves a gap.
        sampled: tokens that were sampled.
        oldest_version: the oldest weight version among their tokens; None without a call.
        roles: that they named; None among them for one that named none.
    """

    count: int = 0
    next_seq: int = 0
    sampled: int = 0
    oldest_version: int | None = None
    roles: frozenset[str | None] = frozenset()


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A finished train episode that no batch has taken."""

    episode_id: str
    group_id: str
    group_named: bool
    task_id: str
    reward: float
    oldest_version: int
    client_id: str
    finished_at: float = field(compare=False)
    """Unix time, seconds, in the ledger; seconds of the pool's clock in there. So it is not compared."""
    source: str | None = None
    rewards: dict[str, float] = field(default_factory=dict[str, float], hash=False)
    """By role; empty without roles."""

    @property
    def earned(self) -> dict[str | None, float]:
        """What is compared with the same of the others of its group: a reward for each role, or just the one."""
        return {**self.rewards} or {None: self.reward}


def insert_episode(db: sqlite3.Connection, record: EpisodeRecord) -> None:
    db.execute(
        "INSERT INTO episodes (id, attempt_id, request_id, group_id, group_named, task_id, task, kind, status,"
        " client_id, api_key_hash, control_key_hash, weight_version, opened_at, weights, source)"
        " VALUES (?,?,?,?,?,?,?,?,'open',?,?,?,?,?,?,?)",
        (
            record.id,
            record.attempt_id,
            record.request_id,
            record.group_id,
            int(record.group_named),
            record.task_id,
            record.task,
            record.kind,
            record.client_id,
            record.api_key_hash,
            record.control_key_hash,
            record.weight_version,
            record.opened_at,
            record.weights,
            record.source,
        ),
    )


def close_episode(
    db: sqlite3.Connection,
    episode_id: str,
    status: EpisodeStatus,
    *,
    reward: float | None = None,
    rewards: dict[str, float] | None = None,
    metrics: dict[str, float] | None = None,
    reason: str | None = None,
) -> None:
    """Closes an open episode. Raises `EpisodeClosedError` if it is closed already."""
    cursor = db.execute(
        "UPDATE episodes SET status = ?, closed_at = ?, reward = ?, rewards = ?, metrics = ?, reason = ?"
        " WHERE id = ? AND status = 'open'",
        (
            status,
            time.time(),
            reward,
            json.dumps(rewards or {}, sort_keys=True),
            json.dumps(metrics or {}),
            reason,
            episode_id,
        ),
    )
    if cursor.rowcount != 1:
        raise EpisodeClosedError(f"episode {episode_id} is closed already")


_VIEW = """
    SELECT e.*, count(c.id) AS calls, coalesce(sum(c.prompt_tokens), 0) AS prompt_tokens,
           coalesce(sum(c.completion_tokens), 0) AS completion_tokens,
           (SELECT p.union_id FROM promises p WHERE p.episode_id = e.id) AS union_id
    FROM episodes e LEFT JOIN calls c ON c.episode_id = e.id
"""


def episode_view(db: sqlite3.Connection, episode_id: str) -> EpisodeView | None:
    row = db.execute(f"{_VIEW} WHERE e.id = ? GROUP BY e.id", (episode_id,)).fetchone()
    if row is None:
        return None
    return EpisodeView(
        episode_id=row["id"],
        attempt_id=row["attempt_id"],
        group_id=row["group_id"],
        task_id=row["task_id"],
        source=row["source"],
        kind=row["kind"],
        status=row["status"],
        client_id=row["client_id"],
        reward=row["reward"],
        rewards=json.loads(row["rewards"]),
        metrics=json.loads(row["metrics"]),
        reason=row["reason"],
        calls=row["calls"],
        prompt_tokens=row["prompt_tokens"],
        completion_tokens=row["completion_tokens"],
        weight_version=row["weight_version"],
        weights=row["weights"],
        batch_id=row["batch_id"],
        union_id=row["union_id"],
    )


def find_by_request(db: sqlite3.Connection, request_id: str) -> sqlite3.Row | None:
    return db.execute("SELECT * FROM episodes WHERE request_id = ?", (request_id,)).fetchone()


def find_by_key_hash(db: sqlite3.Connection, column: str, key_hash: str) -> sqlite3.Row | None:
    """Finds an episode by `api_key_hash` or `control_key_hash`."""
    if column not in ("api_key_hash", "control_key_hash"):
        raise ValueError(f"no such key column: {column}")
    query = f"SELECT id, status FROM episodes WHERE {column} = ?"  # noqa: S608 - one of the two names above
    return db.execute(query, (key_hash,)).fetchone()


def open_episodes(db: sqlite3.Connection) -> list[tuple[EpisodeRecord, CallsSoFar]]:
    """Returns every open episode with what its recorded calls amount to."""
    rows = db.execute(
        "SELECT e.*, count(c.id) AS calls, coalesce(max(c.seq) + 1, 0) AS next_seq,"
        " coalesce(sum(c.completion_tokens), 0) AS sampled, min(c.weight_version) AS oldest,"
        " json_group_array(DISTINCT c.role) AS roles"
        " FROM episodes e LEFT JOIN calls c ON c.episode_id = e.id"
        " WHERE e.status = 'open' GROUP BY e.id ORDER BY e.opened_at"
    ).fetchall()
    names = EpisodeRecord.__dataclass_fields__
    return [
        (
            _episode_record({name: row[name] for name in names}),
            CallsSoFar(row["calls"], row["next_seq"], row["sampled"], row["oldest"], _roles(row)),
        )
        for row in rows
    ]


def _roles(row: sqlite3.Row) -> frozenset[str | None]:
    return frozenset(json.loads(row["roles"]) if row["calls"] else ())


def _episode_record(values: dict[str, Any]) -> EpisodeRecord:
    typed: dict[str, Any] = {"kind": EpisodeKind(values["kind"]), "group_named": bool(values["group_named"])}
    return EpisodeRecord(**{**values, **typed})


def pool_rows(db: sqlite3.Connection) -> list[PoolRow]:
    """Returns the finished train episodes that wait for a batch, oldest first."""
    rows = db.execute(
        "SELECT e.id, e.group_id, e.group_named, e.task_id, e.reward, e.client_id, e.closed_at, e.source,"
        " e.rewards, min(c.weight_version) AS oldest FROM episodes e"
        " JOIN calls c ON c.episode_id = e.id WHERE e.status = 'finished' AND e.kind = 'train' AND e.batch_id IS NULL"
        " AND e.stale = 0 GROUP BY e.id ORDER BY e.closed_at"
    ).fetchall()
    return [
        PoolRow(
            row["id"],
            row["group_id"],
            bool(row["group_named"]),
            row["task_id"],
            row["reward"],
            row["oldest"],
            row["client_id"],
            row["closed_at"],
            row["source"],
            json.loads(row["rewards"]),
        )
        for row in rows
    ]


def stale_count(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT count(*) FROM episodes WHERE stale = 1").fetchone()[0])


def mark_stale(db: sqlite3.Connection, episode_ids: list[str]) -> None:
    """Sets finished episodes aside. One that a batch has taken stays with its batch."""
    db.executemany(
        "UPDATE episodes SET stale = 1 WHERE id = ? AND batch_id IS NULL", [(episode_id,) for episode_id in episode_ids]
    )


def holds_train_episodes(db: sqlite3.Connection) -> bool:
    """True when there is a train episode that is open, waits, or was trained."""
    query = "SELECT 1 FROM episodes WHERE kind = 'train' AND status IN ('open', 'finished') LIMIT 1"
    return db.execute(query).fetchone() is not None


def batch_episodes(db: sqlite3.Connection, batch_id: str) -> list[EpisodeRow]:
    """Returns the episodes of a batch with their calls, in a fixed order."""
    episodes = db.execute(
        "SELECT id, group_id, reward, rewards FROM episodes WHERE batch_id = ? ORDER BY group_id, id", (batch_id,)
    ).fetchall()
    return [
        EpisodeRow(row["id"], row["group_id"], row["reward"], call_rows(db, row["id"]), json.loads(row["rewards"]))
        for row in episodes
    ]
