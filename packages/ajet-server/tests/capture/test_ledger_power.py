"""The ledger leaves flushing to SQLite: it must be told to, and no kill while it is opened may spoil it."""

import os
import signal
import sqlite3
from pathlib import Path

import pytest

from ajet_server.capture import connections
from ajet_server.capture import ledger as ledger_module
from ajet_server.capture.ledger import Ledger
from ajet_server.capture.schema import APPLICATION_ID, MIGRATIONS
from ajet_server.capture.steps import get_meta

_FULL = 2


async def _pragma(ledger: Ledger, name: str) -> object:
    return await ledger.write(lambda db: db.execute(f"PRAGMA {name}").fetchone()[0])


@pytest.mark.anyio
async def test_every_commit_is_flushed(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        assert await _pragma(ledger, "journal_mode") == "wal"
        assert await _pragma(ledger, "synchronous") == _FULL


def _old_ledger(file: Path) -> None:
    """As the first ajet made it."""
    db = sqlite3.connect(file, isolation_level=None)
    db.executescript(
        f"BEGIN; {MIGRATIONS[0]} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 1; COMMIT;"
    )
    db.execute("INSERT INTO meta VALUES ('kept', 'yes')")
    db.close()


def _opens(file: Path, after: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Opens a ledger in a child that is killed after so many steps of SQLite. Returns whether it got through."""
    connect = connections.connect
    left = [after]

    def die() -> int:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def connected(*args: object, **kwargs: bool) -> sqlite3.Connection:
        connection = connect(*args, **kwargs)  # pyright: ignore[reportArgumentType]
        connection.set_progress_handler(die, 100)
        return connection

    child = os.fork()
    if child == 0:
        monkeypatch.setattr(connections, "connect", connected)
        monkeypatch.setattr(ledger_module, "connect", connected)
        try:
            Ledger(file)
        except BaseException:  # noqa: BLE001 - nothing of the child may reach pytest
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL)
    return status == 0


@pytest.mark.parametrize("old", [False, True])
def test_a_kill_while_it_is_opened(tmp_path: Path, old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for after in range(1000):
        file = tmp_path / f"l{after}"
        if old:
            _old_ledger(file)
        through = _opens(file, after, monkeypatch)
        with Ledger(file) as ledger:
            assert ledger.read_now(lambda db: db.execute("PRAGMA user_version").fetchone()[0]) == len(MIGRATIONS)
            assert ledger.read_now(lambda db: get_meta(db, "kept")) == ("yes" if old else None)
        if through:
            assert after > 3
            return
    pytest.fail("it never got through")
