"""Looking into a ledger that need not be open here. Nothing is changed, and a server may run on it meanwhile."""

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from ajet_core.errors import StorageError
from ajet_server.capture.ledger import peek
from ajet_server.capture.schema import require_current
from ajet_server.capture.writes import Statement

T = TypeVar("T")


def look(file: Path, statement: Statement[T]) -> T:
    """Runs `statement` on a connection that cannot write.

    Raises:
        StorageError: there is no such ledger, it cannot be read, or it has another schema.
    """
    if not file.is_file():
        raise StorageError(f"there is no ledger {file}; give the data folder of a server")
    return peek(file, lambda db: statement(_current(db, file)))


def _current(db: sqlite3.Connection, file: Path) -> sqlite3.Connection:
    try:
        require_current(db)
    except StorageError as error:
        raise StorageError(f"{file}: {error.message}") from error
    return db


@contextmanager
def snapshot(db: sqlite3.Connection) -> Generator[None]:
    """What is read inside is one state of the ledger. Keep it short while a server runs: its log grows meanwhile."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        db.execute("COMMIT")
