"""What prepared episodes promised: their reward and metrics, and how they learn what became of their union.

A row is written once and never changed. What was decided is the status of the deciding episode, nothing else: finished
is committed, aborted or expired is aborted, open is undecided.
"""

import json
import sqlite3
from dataclasses import dataclass, field

from ajet_core.episode import EpisodeStatus
from ajet_core.errors import ConflictError, EpisodeClosedError


@dataclass(frozen=True, slots=True)
class Promise:
    """A prepared episode's promise.

    Attributes:
        episode_id: whose.
        union_id: for which union.
        reward: what it is finished with.
        rewards: the same by role; empty without roles.
        metrics: further numbers to keep with it.
        decider: URL of the server that decides; None: this episode decides.
        commit_key: the secret that proves a commit where this episode decides, else its digest.
        abort_key: the same for an abort.
        prepared_at: Unix time, seconds.
    """

    episode_id: str
    union_id: str
    reward: float
    rewards: dict[str, float]
    metrics: dict[str, float]
    decider: str | None
    commit_key: str = field(repr=False)
    abort_key: str = field(repr=False)
    prepared_at: float = field(compare=False)

    @property
    def follows(self) -> bool:
        """Whether another episode decides."""
        return self.decider is not None


def insert_promise(db: sqlite3.Connection, promise: Promise) -> None:
    """Records what an open episode promises.

    Raises:
        EpisodeClosedError: it is closed.
        ConflictError: another episode of this ledger decides for the union already.
    """
    row = db.execute("SELECT status FROM episodes WHERE id = ?", (promise.episode_id,)).fetchone()
    status = row["status"] if row else "unknown"
    if status != EpisodeStatus.OPEN:
        raise EpisodeClosedError(f"episode {promise.episode_id} is {status}; it promises nothing")
    if not promise.follows and deciding_episode(db, promise.union_id) is not None:
        raise ConflictError(f"union_id: another episode decides for {promise.union_id} already", field="union_id")
    db.execute(
        "INSERT INTO promises (episode_id, union_id, reward, rewards, metrics, decider, commit_key, abort_key,"
        " prepared_at) VALUES (?,?,?,?,?,?,?,?,?)",
        (
            promise.episode_id,
            promise.union_id,
            promise.reward,
            json.dumps(promise.rewards, sort_keys=True),
            json.dumps(promise.metrics),
            promise.decider,
            promise.commit_key,
            promise.abort_key,
            promise.prepared_at,
        ),
    )


def deciding_episode(db: sqlite3.Connection, union_id: str) -> sqlite3.Row | None:
    """Returns status, commit_key and abort_key of the episode of this ledger that decides; None if there is none."""
    return db.execute(
        "SELECT e.status, p.commit_key, p.abort_key FROM promises p JOIN episodes e ON e.id = p.episode_id"
        " WHERE p.union_id = ? AND p.decider IS NULL",
        (union_id,),
    ).fetchone()


def following(db: sqlite3.Connection, union_id: str) -> list[Promise]:
    """Returns the promises of the episodes that follow a union, open or not."""
    rows = db.execute(
        "SELECT * FROM promises WHERE union_id = ? AND decider IS NOT NULL ORDER BY episode_id", (union_id,)
    ).fetchall()
    return [_promise(row) for row in rows]


def open_promises(db: sqlite3.Connection) -> list[Promise]:
    """Returns the promises of the open episodes, the oldest first."""
    rows = db.execute(
        "SELECT p.* FROM promises p JOIN episodes e ON e.id = p.episode_id WHERE e.status = 'open'"
        " ORDER BY p.prepared_at, p.episode_id"
    ).fetchall()
    return [_promise(row) for row in rows]


def is_prepared(db: sqlite3.Connection, episode_id: str) -> bool:
    """Whether an episode has promised something."""
    return db.execute("SELECT 1 FROM promises WHERE episode_id = ?", (episode_id,)).fetchone() is not None


def _promise(row: sqlite3.Row) -> Promise:
    values = {name: row[name] for name in Promise.__dataclass_fields__}
    parsed = {name: json.loads(row[name]) for name in ("rewards", "metrics")}
    return Promise(**values | parsed)
