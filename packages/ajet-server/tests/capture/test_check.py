"""A ledger in order has no problems; every way to break it is found, and named by id."""

import sqlite3
from pathlib import Path

import pytest
from ledger_helpers import History, ids, probabilities

from ajet_server.capture.check import check
from ajet_server.capture.problem import Problem
from ajet_server.capture.reading import look, snapshot
from ajet_server.capture.retention import Rule, prune


def problems(file: Path) -> list[Problem]:
    def read(db: sqlite3.Connection) -> list[Problem]:
        with snapshot(db):
            return list(check(db))

    return look(file, read)


@pytest.fixture
def busy(past: History) -> History:
    """Two steps done, one planned, and episodes of every kind."""
    past.episode("lost", "aborted", at=0.0)
    for name in ("a1", "a2"):
        past.episode(name)
    past.train("a1", "a2")
    past.episode("b1")
    past.train("b1")
    past.episode("c1")
    past.plan("c1")
    past.episode("old")
    past.stale("old")
    past.episode("test", "expired", kind="eval")
    past.episode("waits")
    past.open("open")
    past.call("open")
    past.open("mixed")
    first = past.call("mixed", weight_version=0, version_spans="[[0,0],[1,1]]")
    past.call("mixed", 1, first, known=4, weight_version=1, version_spans="[[0,1],[1,2]]")
    past.call("mixed", 2, first, known=4)
    return past


def test_nothing_is_wrong(busy: History) -> None:
    assert problems(busy.ledger.file) == []
    assert prune(busy.ledger, Rule(1, 1.0, 1)).episodes > 0
    assert problems(busy.ledger.file) == []


def test_an_empty_ledger_is_in_order(past: History) -> None:
    assert problems(past.ledger.file) == []


BROKEN = [
    ("UPDATE episodes SET reward = 1 WHERE id = 'open'", "episode", "open", "is open, but"),
    ("UPDATE episodes SET closed_at = NULL WHERE id = 'lost'", "episode", "lost", "nobody knows when"),
    ("UPDATE episodes SET reward = NULL WHERE id = 'waits'", "episode", "waits", "without a reward"),
    ("UPDATE episodes SET reward = 9e999 WHERE id = 'waits'", "episode", "waits", "not finite"),
    ("UPDATE episodes SET reward = 1 WHERE id = 'lost'", "episode", "lost", "was lost, but"),
    ("DELETE FROM calls WHERE episode_id = 'waits'", "episode", "waits", "made no call"),
    ("UPDATE episodes SET kind = 'eval' WHERE id = 'a1'", "episode", "a1", "is in a batch, but"),
    ("UPDATE episodes SET stale = 1 WHERE id = 'lost'", "episode", "lost", "is set aside, but"),
    ("UPDATE episodes SET stale = 1 WHERE id = 'c1'", "episode", "c1", "set aside, but in a batch"),
    ("UPDATE episodes SET dropped_at = 1 WHERE id = 'waits'", "episode", "waits", "may still be trained"),
    ("UPDATE episodes SET dropped_at = 1 WHERE id = 'c1'", "episode", "c1", "may still be trained"),
    ("UPDATE episodes SET dropped_at = 1 WHERE id = 'open'", "episode", "open", "may still be trained"),
    ("UPDATE episodes SET metrics = '{' WHERE id = 'a1'", "episode", "a1", "no JSON"),
    ("UPDATE episodes SET weight_version = 9 WHERE id = 'open'", "episode", "open", "no step has made"),
    ("UPDATE batches SET step = 9 WHERE id = 'batch_3'", "batch", "batch_3", "where step 3 should follow"),
    ("UPDATE batches SET report = NULL WHERE id = 'batch_1'", "batch", "batch_1", "without its report"),
    ("UPDATE batches SET checkpoint = NULL WHERE id = 'batch_1'", "batch", "batch_1", "without its checkpoint"),
    ("UPDATE batches SET report = '{}' WHERE id = 'batch_1'", "batch", "batch_1", "cannot be read"),
    ("UPDATE batches SET report = replace(report, '\"step\":1', '\"step\":2')", "batch", "batch_1", "step is 2"),
    ("UPDATE batches SET report = 'x' WHERE id = 'batch_3'", "batch", "batch_3", "is planned, but has"),
    ("UPDATE episodes SET batch_id = NULL WHERE id = 'a1'", "batch", "batch_1", "episodes is 2, where 1"),
    ("UPDATE episodes SET batch_id = NULL WHERE id = 'c1'", "batch", "batch_3", "has no episode"),
    ("INSERT INTO batches (id, step, status, planned_at) VALUES ('b', 4, 'planned', 0)", "batch", "b", "another one"),
    ("UPDATE calls SET prompt_tokens = 9 WHERE id = 'call_a1_0'", "call", "call_a1_0", "its pieces make 2"),
    ("UPDATE calls SET prompt_ids = x'0102' WHERE id = 'call_a1_0'", "call", "call_a1_0", "its pieces make 0"),
    ("UPDATE calls SET parent_id = 'call_a2_0' WHERE id = 'call_a1_1'", "call", "call_a1_1", "no earlier call"),
    ("UPDATE calls SET seq = 7 WHERE id = 'call_a1_0'", "call", "call_a1_1", "no earlier call"),
    ("UPDATE calls SET completion_tokens = 1 WHERE id = 'call_a1_1'", "call", "call_a1_1", "8 bytes of ids"),
    ("UPDATE calls SET logprobs = x'' WHERE id = 'call_a1_1'", "call", "call_a1_1", "0 bytes of log-probabilities"),
    ("UPDATE calls SET response = '{' WHERE id = 'call_a1_1'", "call", "call_a1_1", "no JSON"),
    ("UPDATE calls SET weight_version = 3 WHERE id = 'call_open_0'", "call", "call_open_0", "none of the 2 steps"),
    ("UPDATE calls SET weight_version = 1 WHERE id = 'call_waits_1'", "call", "call_waits_1", "those of its parent, 2"),
    ("UPDATE calls SET weight_version = 1 WHERE id = 'call_a1_1'", "call", "call_a1_1", "trained in step 1"),
    *(
        (f"UPDATE calls SET version_spans = '{spans}' WHERE id = 'call_mixed_1'", "call", "call_mixed_1", message)
        for spans, message in [
            ("[", "no list of"),
            ("[[0,1],[1]]", "no list of"),
            ("[[0,1]]", "do not begin with (0, 1) and go on"),
            ("[[0,0],[1,2]]", "do not begin with (0, 1)"),
            ("[[1,1],[1,2]]", "do not begin with (0, 1)"),
            ("[[0,1],[2,2]]", "do not follow each other within 2 tokens"),
            ("[[0,1],[0,2]]", "do not follow each other"),
            ("[[0,1],[1,1]]", "whose versions go back"),
            ("[[0,1],[1,3]]", "none of the 2 steps"),
        ]
    ),
    ("UPDATE calls SET version_spans = '[[0,0],[1,2]]' WHERE id = 'call_mixed_0'", "call", "call_mixed_1", "parent, 2"),
    ("UPDATE calls SET version_spans = '[[0,0],[1,1]]' WHERE id = 'call_a1_0'", "call", "call_a1_0", "step 1"),
    ("UPDATE episodes SET dropped_at = 1 WHERE id = 'lost'", "call", "call_lost_0", "still holds tokens"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "kind", "name", "message"), BROKEN)
def test_damage_is_named(busy: History, damage: str, kind: str, name: str, message: str) -> None:
    busy.sql(damage)
    found = problems(busy.ledger.file)
    assert any(one.kind == kind and one.id == name and message in one.message for one in found), found
    assert len(found) <= 3, "what is in order is not blamed"


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("logprobs", probabilities(float("nan"), -1.0), "not finite"),
        ("logprobs", probabilities(-1.0, 0.5), "above 0"),
        ("completion_ids", ids(1, -2), "completion_ids below 0"),
    ],
)
def test_numbers_that_cannot_be(busy: History, column: str, value: bytes, message: str) -> None:
    busy.sql(f"UPDATE calls SET {column} = ? WHERE id = 'call_waits_1'", value)
    (found,) = problems(busy.ledger.file)
    assert (found.id, message in found.message) == ("call_waits_1", True)


def test_a_row_that_refers_to_nothing(busy: History) -> None:
    file = busy.ledger.file
    with sqlite3.connect(file) as db:  # without foreign keys
        db.execute("UPDATE episodes SET batch_id = 'batch_9' WHERE id = 'waits'")
    db.close()
    assert any("refers to a row of batches" in one.message for one in problems(file))


def test_a_damaged_file_is_told_and_no_more(busy: History) -> None:
    file = busy.ledger.file
    busy.sql("UPDATE episodes SET reward = NULL WHERE id = 'waits'")
    with sqlite3.connect(file) as db:
        db.execute("PRAGMA writable_schema = 1")
        # An index of another table's columns: what is found through it is wrong.
        db.execute("DELETE FROM sqlite_master WHERE name = 'episodes_by_status'")
    db.close()
    found = problems(file)
    assert found
    assert {one.kind for one in found} == {"file"}
