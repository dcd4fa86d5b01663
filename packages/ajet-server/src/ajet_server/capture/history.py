"""What happened to the train episodes of a ledger, in the order of time: what a batch policy can be replayed on."""

import json
import sqlite3
from dataclasses import dataclass

from ajet_core.episode import EpisodeStatus
from ajet_server.capture.readiness import Said, readiness
from ajet_server.capture.records import PoolRow


@dataclass(frozen=True, slots=True)
class Opened:
    """A train episode was opened."""

    at: float
    episode_id: str
    client_id: str


@dataclass(frozen=True, slots=True)
class Called:
    """Its first call was recorded: under the weights of that moment it was sampled."""

    at: float
    episode_id: str


@dataclass(frozen=True, slots=True)
class Closed:
    """It was finished (`row`), or aborted or expired (None)."""

    at: float
    episode_id: str
    row: PoolRow | None


Occurrence = Opened | Called | Closed | Said
_ORDER = (Opened, Called, Closed, Said)


@dataclass(frozen=True, slots=True)
class Bound:
    """A batch that the server itself made: when, and of which episodes."""

    at: float
    episode_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class History:
    """A ledger, as a policy sees it.

    Attributes:
        occurrences: in the order of their Unix times.
        batches: what the server itself made of them.
        end: Unix time of the last thing that the ledger knows of; 0 for an empty one.
    """

    occurrences: tuple[Occurrence, ...]
    batches: tuple[Bound, ...]
    end: float


def read_history(db: sqlite3.Connection) -> History:
    """Reads the history of a ledger."""
    rows = db.execute(
        "SELECT e.*, (SELECT c.at FROM calls c WHERE c.episode_id = e.id ORDER BY c.seq LIMIT 1) AS called_at"
        " FROM episodes e WHERE e.kind = 'train' ORDER BY e.opened_at"
    ).fetchall()
    found = [*(occurrence for row in rows for occurrence in _occurrences(row)), *readiness(db)]
    found.sort(key=lambda occurrence: (occurrence.at, _ORDER.index(type(occurrence))))
    last_event = db.execute("SELECT coalesce(max(at), 0) FROM events").fetchone()[0]
    return History(tuple(found), _batches(db), max(last_event, found[-1].at if found else 0.0))


def _occurrences(row: sqlite3.Row) -> list[Occurrence]:
    found: list[Occurrence] = [Opened(row["opened_at"], row["id"], row["client_id"])]
    if row["called_at"] is not None:
        found.append(Called(row["called_at"], row["id"]))
    if row["closed_at"] is not None:
        finished = row["status"] == EpisodeStatus.FINISHED
        found.append(Closed(row["closed_at"], row["id"], _pool_row(row) if finished else None))
    return found


def _pool_row(row: sqlite3.Row) -> PoolRow:
    """The version is counted by whoever replays: other updates, other versions."""
    return PoolRow(
        row["id"],
        row["group_id"],
        bool(row["group_named"]),
        row["task_id"],
        row["reward"],
        oldest_version=0,
        client_id=row["client_id"],
        finished_at=row["closed_at"],
        source=row["source"],
        rewards=json.loads(row["rewards"]),
    )


def _batches(db: sqlite3.Connection) -> tuple[Bound, ...]:
    rows = db.execute(
        "SELECT b.planned_at, json_group_array(e.id) AS ids FROM batches b JOIN episodes e ON e.batch_id = b.id"
        " GROUP BY b.id ORDER BY b.planned_at"
    ).fetchall()
    return tuple(Bound(row["planned_at"], tuple(json.loads(row["ids"]))) for row in rows)
