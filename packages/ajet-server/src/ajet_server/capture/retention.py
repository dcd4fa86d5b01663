"""What the ledger may forget: the contents of calls that no batch will need again.

A call's row stays, with its sizes, versions and sampling; its ids, log-probabilities and messages go. Contents are
dropped only of episodes that are settled:

    aborted, expired, finished for evaluation, set aside     never trained
    in a batch that is done                                  unless it is of one of the newest `redo_steps` steps

So never of an episode that is open, waits for a batch or is in a planned one, and never of a batch that could be done
again from a checkpoint that is still there.
"""

import contextlib
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

from ajet_core.config import Job
from ajet_core.errors import StorageError
from ajet_server.capture.calls import drop_contents
from ajet_server.capture.ledger import Ledger
from ajet_server.capture.steps import step_count

_DAY_S = 86_400.0
_EPISODES = 100
"""Contents of so many episodes are dropped in one transaction."""
_PAGES = 1024
"""So many free pages are given back to the disk in one transaction."""
_INCREMENTAL = 2


@dataclass(frozen=True, slots=True)
class Rule:
    """When contents go: as soon as one of the bounds says so; never, without any.

    Attributes:
        trained_episodes: so many of the latest trained episodes keep theirs, rounded up to whole batches.
        days: so many days after it was closed, an episode loses its.
        redo_steps: the batches of so many of the latest steps keep theirs in any case.
    """

    trained_episodes: int | None
    days: float | None
    redo_steps: int

    @classmethod
    def of(cls, job: Job) -> "Rule":
        """That of a job: a step could be done again from any checkpoint that is kept."""
        return cls(job.retention.trained_episodes, job.retention.days, job.checkpoint.keep)

    @property
    def bounded(self) -> bool:
        """False if nothing is ever dropped."""
        return self.trained_episodes is not None or self.days is not None


@dataclass(frozen=True, slots=True)
class Dropped:
    """How much was dropped: episodes, their calls, and bytes of contents."""

    episodes: int = 0
    calls: int = 0
    bytes: int = 0

    def __add__(self, other: "Dropped") -> "Dropped":
        return Dropped(self.episodes + other.episodes, self.calls + other.calls, self.bytes + other.bytes)


_DROPPABLE = """
    FROM episodes e LEFT JOIN batches b ON b.id = e.batch_id
    WHERE e.dropped_at IS NULL AND e.closed_at IS NOT NULL AND (
        e.status IN ('aborted', 'expired') OR (e.status = 'finished' AND (e.kind = 'eval' OR e.stale = 1))
        OR (b.status = 'done' AND b.step <= :newest_safe))
    AND (e.closed_at < :closed_before OR (b.status = 'done' AND b.step < :trained_before))
"""
_SIZE = """
    SELECT count(*) AS calls, coalesce(sum(length(prompt_ids) + length(completion_ids) + length(logprobs)
        + length(CAST(messages AS BLOB)) + length(CAST(tools AS BLOB)) + length(CAST(response AS BLOB))), 0) AS bytes
    FROM calls WHERE episode_id = ?
"""


def droppable(db: sqlite3.Connection, rule: Rule, now: float, limit: int = -1) -> list[str]:
    """Returns the ids of episodes whose contents may go, those first that were closed first.

    Args:
        db: the ledger.
        rule: when.
        now: seconds since 1970.
        limit: at most so many; all if negative.
    """
    if not rule.bounded:
        return []
    query = f"SELECT e.id {_DROPPABLE} ORDER BY e.closed_at LIMIT :limit"
    values = _bounds(db, rule, now) | {"limit": limit}
    return [row["id"] for row in db.execute(query, values)]


def _bounds(db: sqlite3.Connection, rule: Rule, now: float) -> dict[str, float | None]:
    """The parameters of `_DROPPABLE`. Compared with None, nothing is true."""
    return {
        "newest_safe": step_count(db) - rule.redo_steps,
        "closed_before": None if rule.days is None else now - rule.days * _DAY_S,
        "trained_before": None if rule.trained_episodes is None else _oldest_kept_step(db, rule.trained_episodes),
    }


def _oldest_kept_step(db: sqlite3.Connection, episodes: int) -> int:
    """The step of the batch with which the newest ones hold so many episodes."""
    held, oldest = 0, step_count(db) + 1
    batches = db.execute(
        "SELECT step, (SELECT count(*) FROM episodes WHERE batch_id = batches.id) AS episodes FROM batches"
        " WHERE status = 'done' ORDER BY step DESC"
    )
    for batch in batches:
        if held >= episodes:
            break
        held, oldest = held + batch["episodes"], batch["step"]
    return oldest


def drop_some(db: sqlite3.Connection, rule: Rule, now: float, limit: int = _EPISODES) -> Dropped:
    """Drops the contents of some episodes, in the caller's transaction. Nothing if none is left."""
    ids = droppable(db, rule, now, limit)
    size = sizes(db, ids)
    for name in ids:
        drop_contents(db, name)
        db.execute("UPDATE episodes SET dropped_at = ? WHERE id = ?", (now, name))
    return size


def sizes(db: sqlite3.Connection, ids: list[str]) -> Dropped:
    """Returns what the calls of these episodes hold."""
    total = Dropped()
    for name in ids:
        row = db.execute(_SIZE, (name,)).fetchone()
        total += Dropped(1, row["calls"], row["bytes"])
    return total


def give_back(db: sqlite3.Connection) -> bool:
    """Takes some free pages off the file's end. Returns whether more are left that can be taken."""
    if _number(db, "auto_vacuum") != _INCREMENTAL:
        return False  # they will be used again; `compact` makes such a file smaller
    for _ in range(min(_number(db, "freelist_count"), _PAGES)):
        db.execute("PRAGMA incremental_vacuum(1)")  # one page a statement: Python steps a statement without rows once
    return _number(db, "freelist_count") > 0


def prune(ledger: Ledger, rule: Rule) -> Dropped:
    """Drops whatever the rule allows, in small transactions; blocking, for a ledger that nobody else uses."""
    total, now = Dropped(), time.time()
    while (some := ledger.write_now(lambda db: drop_some(db, rule, now))).episodes:
        total += some
    while ledger.write_now(give_back):
        pass
    return total


def compact(file: Path) -> None:
    """Lets a file that was made without it shrink from now on; writes it anew, and needs as much room on the disk.

    Raises:
        StorageError: the disk refuses; the file is as it was.
    """
    try:
        with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as db:
            if _number(db, "auto_vacuum") != _INCREMENTAL:
                db.execute(f"PRAGMA auto_vacuum = {_INCREMENTAL}")
                db.execute("VACUUM")
    except sqlite3.Error as error:
        raise StorageError(f"the ledger {file} could not be compacted: {error}; it is as it was") from error


def _number(db: sqlite3.Connection, pragma: str) -> int:
    return int(db.execute(f"PRAGMA {pragma}").fetchone()[0])
