"""A ledger is read from outside: while a server writes, and without a trace."""

import sqlite3
from pathlib import Path

import pytest
from ledger_helpers import History

from ajet_core.errors import StorageError
from ajet_server.capture.browse import EpisodeFilter, count_episodes
from ajet_server.capture.reading import look, snapshot
from ajet_server.capture.schema import APPLICATION_ID, MIGRATIONS


def _count(db: sqlite3.Connection) -> int:
    return count_episodes(db, EpisodeFilter())


def test_it_sees_what_a_running_server_wrote(past: History) -> None:
    past.open("a")
    assert look(past.ledger.file, _count) == 1


def test_a_snapshot_is_one_state(past: History) -> None:
    past.open("a")

    def twice(db: sqlite3.Connection) -> list[int]:
        with snapshot(db):
            first = _count(db)
            past.open("b")
            counts = [first, _count(db)]
        return [*counts, _count(db)]

    assert look(past.ledger.file, twice) == [1, 1, 2]


def test_it_cannot_write(past: History) -> None:
    past.open("a")
    with pytest.raises(StorageError, match="readonly"):
        look(past.ledger.file, lambda db: db.execute("DELETE FROM episodes"))


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there is no ledger"):
        look(tmp_path / "ledger.sqlite", _count)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("version", "owner", "message"),
    [
        (len(MIGRATIONS) + 1, APPLICATION_ID, "use a newer ajet"),
        (len(MIGRATIONS) - 1, APPLICATION_ID, "start a server on the data folder once"),
        (len(MIGRATIONS), 7, "not a ledger of ajet"),
    ],
)
def test_another_schema_is_told(past: History, version: int, owner: int, message: str) -> None:
    past.sql(f"PRAGMA user_version = {version}")
    past.sql(f"PRAGMA application_id = {owner}")
    with pytest.raises(StorageError, match=message):
        look(past.ledger.file, _count)
