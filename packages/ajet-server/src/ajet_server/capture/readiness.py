"""What clients said about the next update, from the ledger's events."""

import json
import sqlite3
from dataclasses import dataclass

from ajet_server.capture.steps import LAST_PLANNED, get_meta


@dataclass(frozen=True, slots=True)
class Said:
    """A client agreed to an update, or took it back. `at` is Unix time, seconds."""

    client_id: str
    ready: bool
    at: float


def readiness(db: sqlite3.Connection, after: int = 0) -> list[Said]:
    """Returns what was said after an event, in order."""
    rows = db.execute(
        "SELECT at, data FROM events WHERE type = 'client_ready' AND id > ? ORDER BY id", (after,)
    ).fetchall()
    said = [(row["at"], json.loads(row["data"])) for row in rows]
    return [Said(str(data["client_id"]), bool(data["ready"]), at) for at, data in said]


def readiness_since_last_batch(db: sqlite3.Connection) -> list[Said]:
    """Returns what was said since the last batch was bound to its episodes."""
    return readiness(db, int(get_meta(db, LAST_PLANNED) or 0))
