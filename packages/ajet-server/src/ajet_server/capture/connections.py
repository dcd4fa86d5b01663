"""The ledger's file: connections to it, and whether it is one of ours."""

import contextlib
import sqlite3
from pathlib import Path

from ajet_core.errors import StorageError
from ajet_server.capture.schema import APPLICATION_ID, migrate, refuse_newer

_CHECKPOINT_PAGES = 4000
"""16 MB of the log. Pages that many calls change, those of indexes, are put into the file once and not every time."""


def connect(file: Path | str, *, uri: bool = False) -> sqlite3.Connection:
    """Opens a file. Transactions begin where they are told to, and rows have names."""
    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False, timeout=30, uri=uri)
    connection.row_factory = sqlite3.Row
    return connection


def open_writer(file: Path) -> sqlite3.Connection:
    """Opens a file for writing, and brings it to the newest schema."""
    connection = connect(file)
    try:
        # Of a file that is there already it changes nothing; `retention.compact` does.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        connection.execute("PRAGMA foreign_keys = ON")
        # What it takes to undo a statement over many rows; else that is a file for each of them.
        connection.execute("PRAGMA temp_store = MEMORY")
        migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def check(file: Path) -> None:
    """Refuses a file that is corrupted or no ledger of ours, through a connection that cannot write."""
    if not file.exists() or file.stat().st_size == 0:
        return
    with contextlib.closing(connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        try:
            owner = int(connection.execute("PRAGMA application_id").fetchone()[0])
            tables = int(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
            problem = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
        except sqlite3.OperationalError:
            raise  # it cannot be opened
        except sqlite3.DatabaseError as error:
            raise _corrupted(file, error) from error
        if problem != "ok":
            raise _corrupted(file, problem)
        # Without tables, a crash came between the file and its first transaction.
        if tables and owner != APPLICATION_ID:
            raise StorageError(f"{file} is not a ledger of ajet; it was not changed. Start with another data folder")
        refuse_newer(connection)


def _corrupted(file: Path, problem: object) -> StorageError:
    return StorageError(
        f"the ledger {file} is corrupted ({problem}); it was not changed. Restore it from a copy, or start with "
        "another data folder"
    )
