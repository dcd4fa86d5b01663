"""An episode's calls are kept in pieces and read back whole."""

import contextlib
import json
import resource
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from call_helpers import make_call
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.episode import EpisodeKind, EpisodeStatus
from ajet_core.errors import EpisodeClosedError, StorageError
from ajet_server.capture import records
from ajet_server.capture.calls import MOST_AT_ONCE, CallRecord, answers_to, call_rows, insert_calls, whole_calls
from ajet_server.capture.connections import open_writer
from ajet_server.capture.schema import MIGRATIONS, migrate


def _ids(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    connection = _ledger()
    yield connection
    connection.close()


def _ledger() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA foreign_keys = ON")
    migrate(connection)
    _open(connection, "e")
    return connection


def _open(db: sqlite3.Connection, name: str) -> None:
    attempt, request, key, control = (f"{kind}{name}" for kind in ("a", "r", "k", "ck"))
    records.insert_episode(
        db,
        records.EpisodeRecord(
            name, attempt, request, "g", False, "t", "null", EpisodeKind.TRAIN, "c", key, control, 0, 0.0
        ),
    )


def _turn(number: int, parent: CallRecord | None, prompt: bytes, tokens: int, **fields: Any) -> CallRecord:
    parent_id = None if parent is None else parent.id
    return make_call(f"c{number}", "e", number, parent_id=parent_id, prompt_ids=prompt, prompt_tokens=tokens, **fields)


def test_a_chain_is_put_together(db: sqlite3.Connection) -> None:
    user, again = {"role": "user", "content": "a"}, {"role": "user", "content": "b"}
    said = {"role": "assistant", "content": "x"}
    first = _turn(
        0, None, _ids(1, 2), 2, completion_ids=_ids(3), messages=json.dumps([user]), response=json.dumps(said)
    )
    second = _turn(1, first, _ids(4, 5), 5, completion_ids=_ids(6, 7), messages=json.dumps([again]))
    insert_calls(db, [first])
    insert_calls(db, [second])
    whole = whole_calls(db, "e")
    assert [call.prompt_ids for call in whole] == [_ids(1, 2), _ids(1, 2, 3, 4, 5)]
    assert whole[1].messages == [user, said, again]
    assert whole[0].response == said
    assert [row.prompt_ids for row in call_rows(db, "e")] == [_ids(1, 2), _ids(1, 2, 3, 4, 5)]
    view = records.episode_view(db, "e")
    assert view is not None
    assert (view.prompt_tokens, view.completion_tokens) == (7, 3)


@given(st.data())
def test_any_tree_of_calls_is_read_back(data: st.DataObject) -> None:
    connection = _ledger()
    wholes: list[bytes] = []
    made: list[CallRecord] = []
    for number in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.sampled_from([None, *range(number)]))
        suffix = _ids(*data.draw(st.lists(st.integers(0, 9), max_size=4)))
        before = b"" if at is None else wholes[at] + made[at].completion_ids
        wholes.append(before + suffix)
        parent = None if at is None else made[at]
        completion = _ids(*data.draw(st.lists(st.integers(0, 9), max_size=3)))
        made.append(_turn(number, parent, suffix, len(wholes[-1]) // 4, completion_ids=completion))
        insert_calls(connection, made[-1:])
    assert [call.prompt_ids for call in whole_calls(connection, "e")] == wholes
    connection.close()


def test_pieces_that_do_not_add_up_are_told(db: sqlite3.Connection) -> None:
    insert_calls(db, [_turn(0, None, _ids(1, 2), 3)])
    with pytest.raises(StorageError, match="c0: its prompt has 2 tokens, 3 were recorded"):
        whole_calls(db, "e")


def test_all_choices_or_none(db: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        insert_calls(db, [_turn(0, None, _ids(1, 2), 2), make_call("c0", "e", 1)])
    assert whole_calls(db, "e") == []
    records.close_episode(db, "e", EpisodeStatus.ABORTED)
    with pytest.raises(EpisodeClosedError, match="aborted"):
        insert_calls(db, [_turn(0, None, _ids(1, 2), 2)])
    assert whole_calls(db, "e") == []


def test_calls_of_many_episodes_are_recorded_together(db: sqlite3.Connection) -> None:
    for name in ("f", "g"):
        _open(db, name)
    made = [make_call(f"c{number}", "efg"[number % 3], number) for number in range(2 * MOST_AT_ONCE + 5)]
    insert_calls(db, made)
    assert sum(len(whole_calls(db, name)) for name in "efg") == len(made)


def test_nothing_long_is_held_by_statements(tmp_path: Path) -> None:
    with contextlib.closing(open_writer(tmp_path / "l")) as db:
        _open(db, "e")
        before = _resident_bytes()
        for calls in range(1, 9):
            text = b"\1" * 3_000_000
            insert_calls(db, [make_call(f"c{calls}.{n}", "e", 10 * calls + n, prompt_ids=text) for n in range(calls)])
        assert _resident_bytes() - before < 60_000_000
        assert db.execute("SELECT count(*) FROM calls").fetchone()[0] == 36


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("closed", [EpisodeStatus.ABORTED, None])
def test_one_closed_episode_keeps_out_all(db: sqlite3.Connection, closed: EpisodeStatus | None) -> None:
    if closed:
        _open(db, "f")
        records.close_episode(db, "f", closed)
    with pytest.raises(EpisodeClosedError, match=f"episode f is {closed or 'unknown'}; the call was not recorded"):
        insert_calls(db, [make_call("c0", "e", 0), make_call("c1", "f", 0), make_call("c2", "e", 1)])
    assert whole_calls(db, "e") == []


def test_answers_are_found_by_what_was_asked(db: sqlite3.Connection) -> None:
    for number, digest in enumerate([b"x", b"y", b"x"]):
        insert_calls(db, [_turn(number, None, _ids(1, 2), 2, request_digest=digest)])
    insert_calls(db, [_turn(3, None, _ids(1, 2), 2, request_digest=b"x", answer_id="c2", choice=1)])
    assert answers_to(db, "e", b"x") == ["c0", "c2"]
    assert answers_to(db, "e", b"z") == []
    assert answers_to(db, "other", b"x") == []


def test_calls_of_the_first_schema_are_read() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.row_factory = sqlite3.Row
    connection.executescript(MIGRATIONS[0] + "PRAGMA user_version = 1;")
    connection.execute(
        "INSERT INTO episodes (id, attempt_id, request_id, group_id, group_named, task_id, task, kind, status,"
        " client_id, api_key_hash, control_key_hash, weight_version, opened_at)"
        " VALUES ('e', 'a', 'r', 'g', 0, 't', 'null', 'train', 'open', 'c', 'k', 'ck', 0, 0.0)"
    )
    connection.execute(
        "INSERT INTO calls VALUES ('c', 'e', 0, 0.0, ?, ?, ?, '{}', 1.0, 0, 'stop', 0, '[]', 'said \"so\"')",
        (_ids(1, 2, 3), _ids(4), b"\0" * 4),
    )
    migrate(connection)
    (call,) = whole_calls(connection, "e")
    assert (call.prompt_ids, call.record.prompt_tokens, call.record.parent_id) == (_ids(1, 2, 3), 3, None)
    assert call.response == {"role": "assistant", "content": 'said "so"'}
    connection.close()
