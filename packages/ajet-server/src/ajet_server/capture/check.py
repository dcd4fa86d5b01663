"""Whether a ledger is what it should be: the file itself, episodes, batches, calls (contracts 1 and 2).

    check             the file, and all of the below
    check_episodes    states that cannot be
    check_batches     steps one after another, each done once, each episode trained at most once
    check_calls       the pieces of calls add up

Nothing is repaired. Whoever reads the problems knows which rows to look at.
"""

import sqlite3
from collections.abc import Callable, Iterator

from ajet_server.capture.check_batches import check_batches
from ajet_server.capture.check_calls import check_calls
from ajet_server.capture.check_episodes import check_episodes
from ajet_server.capture.problem import Problem

_MOST = 100
"""SQLite stops after so many faults of the file."""


def check(db: sqlite3.Connection, on_call: Callable[[], object] = lambda: None) -> Iterator[Problem]:
    """Finds what is wrong with a ledger, one row in memory at a time.

    Args:
        db: of `reading.look`, inside a `snapshot`.
        on_call: called for every call that was looked at.
    """
    try:
        damaged = [row[0] for row in db.execute(f"PRAGMA integrity_check({_MOST})") if row[0] != "ok"]
    except sqlite3.DatabaseError as error:
        damaged = [str(error)]
    if damaged:  # rows of a damaged file mean nothing
        yield from (Problem("file", "ledger", text) for text in damaged)
        return
    for table, rowid, parent, _ in db.execute("PRAGMA foreign_key_check"):
        yield Problem("file", f"{table} row {rowid}", f"refers to a row of {parent} that is not there")
    yield from check_episodes(db)
    yield from check_batches(db)
    yield from check_calls(db, on_call)
