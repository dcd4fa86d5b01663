"""Batches and steps in the ledger.

A batch is planned (its episodes are bound to it, durably) before the worker sees it, and done once its step is
checkpointed. After a crash a planned batch is either recognised in the newest checkpoint, or done again from the one
before: each episode is trained at most once, and exactly once if its step was checkpointed.
"""

import json
import sqlite3
import time
from dataclasses import dataclass

from ajet_core.errors import ConflictError
from ajet_core.events import StepReport

LAST_PLANNED = "last_event_before_batch"
"""Key of `meta`: id of the newest event when the newest batch was planned. Ids keep their order; clocks jump."""


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch that is bound to its episodes and not done yet."""

    batch_id: str
    step: int


def plan_batch(db: sqlite3.Connection, batch: PlannedBatch, episode_ids: list[str]) -> None:
    """Binds episodes to a new batch. Raises `ConflictError` if one of them is not free."""
    db.execute(
        "INSERT INTO batches (id, step, status, planned_at) VALUES (?, ?, 'planned', ?)",
        (batch.batch_id, batch.step, time.time()),
    )
    set_meta(db, LAST_PLANNED, str(db.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()[0]))
    for episode_id in episode_ids:
        cursor = db.execute(
            "UPDATE episodes SET batch_id = ?"
            " WHERE id = ? AND status = 'finished' AND kind = 'train' AND batch_id IS NULL AND stale = 0",
            (batch.batch_id, episode_id),
        )
        if cursor.rowcount != 1:
            raise ConflictError(f"episode {episode_id} is not free for batch {batch.batch_id}")


def finish_batch(db: sqlite3.Connection, batch_id: str, report: str, checkpoint: str) -> None:
    """Records that a batch's step is checkpointed. Recording it twice changes nothing."""
    db.execute(
        "UPDATE batches SET status = 'done', done_at = ?, report = ?, checkpoint = ?"
        " WHERE id = ? AND status = 'planned'",
        (time.time(), report, checkpoint, batch_id),
    )


def planned_batch(db: sqlite3.Connection) -> PlannedBatch | None:
    """Returns the batch that was planned and not finished, if there is one."""
    row = db.execute("SELECT id, step FROM batches WHERE status = 'planned' ORDER BY step LIMIT 1").fetchone()
    return PlannedBatch(row["id"], row["step"]) if row else None


def last_report(db: sqlite3.Connection) -> StepReport | None:
    """Returns the report of the newest finished step."""
    row = db.execute("SELECT report FROM batches WHERE status = 'done' ORDER BY step DESC LIMIT 1").fetchone()
    return StepReport.model_validate_json(row["report"]) if row else None


def step_count(db: sqlite3.Connection) -> int:
    """Returns the step of the newest finished batch, 0 without one."""
    return int(db.execute("SELECT coalesce(max(step), 0) FROM batches WHERE status = 'done'").fetchone()[0])


def get_meta(db: sqlite3.Connection, key: str) -> str | None:
    row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row["value"])


def set_meta(db: sqlite3.Connection, key: str, value: str) -> None:
    db.execute(
        "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (key, value),
    )


def insert_event(db: sqlite3.Connection, kind: str, at: float, data: str) -> int:
    """Appends an event and returns its id."""
    cursor = db.execute("INSERT INTO events (at, type, data) VALUES (?, ?, ?)", (at, kind, data))
    if cursor.lastrowid is None:
        raise RuntimeError("SQLite gave no rowid for an insert")
    return cursor.lastrowid


def events_after(db: sqlite3.Connection, after: int, limit: int) -> list[tuple[int, str]]:
    """Returns up to `limit` (id, JSON) pairs with id > after, in order."""
    rows = db.execute("SELECT id, data FROM events WHERE id > ? ORDER BY id LIMIT ?", (after, limit)).fetchall()
    return [(int(row["id"]), json.dumps({**json.loads(row["data"]), "id": row["id"]})) for row in rows]
