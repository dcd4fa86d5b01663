"""Writes that are run together do what each would alone."""

import json
import sqlite3
import threading
from collections.abc import Generator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.errors import ConflictError, StorageError
from ajet_server.capture.ledger import Ledger
from ajet_server.capture.steps import set_meta
from ajet_server.capture.writes import Bulk, Statement, Write


def test_what_is_of_one_kind_is_one_statement(tmp_path: Path) -> None:
    statements: list[str] = []
    with _held_up(tmp_path / "l") as (ledger, go_on):
        futures = [Future[None]() for _ in range(20)]
        for number, future in enumerate(futures):
            ledger._enqueue(Write(_metas(f"a{number}", f"b{number}"), future))
        ledger._writer.set_trace_callback(statements.append)
        go_on.set()
        wait(futures, 10)
        assert ledger.read_now(_keys) == {f"{letter}{number}" for letter in "ab" for number in range(20)}
    assert [sql.split()[0] for sql in statements] == ["COMMIT", "INSERT"]


def test_nothing_is_written_into_a_transaction_that_could_not_be_undone(tmp_path: Path) -> None:
    with _held_up(tmp_path / "l") as (ledger, go_on):
        go_on.set()
        ledger.write_now(_metas("a"))
        ledger._writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError):
            ledger.write_now(_metas("b"))
        ledger.write_now(_metas("c"))
        assert ledger.read_now(_keys) == {"a", "c"}


@given(st.lists(st.tuples(st.sampled_from(["one", "few", "many", "refused"]), st.integers(0, 9)), max_size=30))
def test_writes_do_the_same_together_as_each_alone(asked: list[tuple[str, int]]) -> None:
    keys = {"one": 1, "few": 3, "many": 50}

    def names(kind: str, number: int) -> list[str]:
        return [f"{kind}{number}.{n}" for n in range(keys[kind])]

    def statement(kind: str, number: int) -> Statement[None]:
        if kind == "one":
            return lambda db: set_meta(db, names(kind, number)[0], "x")
        return _metas(f"refused{number}", "") if kind == "refused" else _metas(*names(kind, number))

    with TemporaryDirectory() as folder, _held_up(Path(folder) / "l") as (ledger, go_on):
        futures = [Future[None]() for _ in asked]
        for future, (kind, number) in zip(futures, asked, strict=True):
            ledger._enqueue(Write(statement(kind, number), future))
        go_on.set()
        wait(futures, 10)
        refused = [isinstance(future.exception(0), ConflictError) for future in futures]
        assert refused == [kind == "refused" for kind, _ in asked]
        kept = {name for kind, number in asked if kind != "refused" for name in names(kind, number)}
        assert ledger.read_now(_keys) == kept


@contextmanager
def _held_up(file: Path) -> Generator[tuple[Ledger, threading.Event]]:
    """A ledger that has begun to write something and goes on when it is told to."""
    begun, go_on = threading.Event(), threading.Event()
    with Ledger(file) as ledger:

        def hold(_: object) -> None:
            begun.set()
            go_on.wait(10)

        ledger._enqueue(Write(hold, Future[None]()))
        assert begun.wait(10)
        try:
            yield ledger, go_on
        finally:
            go_on.set()


def _metas(*keys: str) -> Bulk[str]:
    return Bulk(_set_metas, list(keys), at_once=40)


def _set_metas(db: sqlite3.Connection, keys: list[str]) -> None:
    """One SQL statement, which does nothing if a key is empty."""
    rows = db.execute(
        "INSERT OR REPLACE INTO meta (key, value) SELECT value, 'x' FROM json_each(?1)"
        " WHERE NOT EXISTS (SELECT 1 FROM json_each(?1) WHERE value = '')",
        (json.dumps(keys),),
    ).rowcount
    if not rows:
        raise ConflictError("a key is empty")


def _keys(db: sqlite3.Connection) -> set[str]:
    return {row["key"] for row in db.execute("SELECT key FROM meta")}
