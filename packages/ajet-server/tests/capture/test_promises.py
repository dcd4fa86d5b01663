"""Promises in the ledger: written once, of open episodes, and in ledgers that were made before there were any."""

import sqlite3
from pathlib import Path

import pytest
from ledger_helpers import History, history

from ajet_core.errors import ConflictError, EpisodeClosedError
from ajet_server.capture.check import check
from ajet_server.capture.ledger import Ledger
from ajet_server.capture.promises import Promise, deciding_episode, following, insert_promise, open_promises
from ajet_server.capture.schema import APPLICATION_ID, MIGRATIONS


def promise(episode_id: str, *, decider: str | None = "http://a", union_id: str = "un") -> Promise:
    return Promise(episode_id, union_id, 1.0, {"w": 2.0, "b": 0.0}, {"m": 2.0}, decider, "c", "a", 3.0)


def insert(past: History, *promises: Promise) -> None:
    for one in promises:
        past.ledger.write_now(lambda db, one=one: insert_promise(db, one))


def test_what_was_promised_is_read_back(past: History) -> None:
    decides, follows = promise(past.open("a"), decider=None), promise(past.open("b"))
    past.call("a")
    insert(past, decides, follows)
    read = past.ledger.read_now
    assert read(open_promises) == [decides, follows]
    assert [one.prepared_at for one in read(open_promises)] == [3.0, 3.0]
    assert read(lambda db: following(db, "un")) == [follows]
    assert tuple(read(lambda db: deciding_episode(db, "un")) or ()) == ("open", "c", "a")
    assert read(lambda db: deciding_episode(db, "other")) is None
    past.close("a")
    assert read(open_promises) == [follows]
    assert "c" not in repr(decides).replace("decider", "").replace("metrics", "").replace("episode", "")


def test_who_cannot_promise(past: History) -> None:
    insert(past, promise(past.open("a"), decider=None))
    with pytest.raises(ConflictError, match="decides for un already"):
        insert(past, promise(past.open("b"), decider=None))
    for name in (past.episode("c", "aborted"), "nobody"):
        with pytest.raises(EpisodeClosedError, match="promises nothing"):
            insert(past, promise(name))


def test_another_reward_than_promised_is_found(past: History) -> None:
    past.open("a")
    past.call("a")
    insert(past, promise("a"))
    past.ledger.write_now(lambda db: db.execute("UPDATE promises SET reward = 7"))
    past.close("a", reward=1.0)
    found = past.ledger.read_now(lambda db: [str(problem) for problem in check(db)])
    assert ["another reward than it had promised" in text for text in found] == [True]


def test_a_ledger_from_before_takes_promises(tmp_path: Path) -> None:
    file = tmp_path / "l"
    before = next(number for number, text in enumerate(MIGRATIONS) if "CREATE TABLE promises" in text)
    with sqlite3.connect(file) as old:
        for text in MIGRATIONS[:before]:
            old.executescript(text)
        old.executescript(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {before};")
    old.close()
    with history(file) as past:
        insert(past, promise(past.open("a")))
    with Ledger(file) as again:
        assert again.read_now(open_promises) == [promise("a")]
