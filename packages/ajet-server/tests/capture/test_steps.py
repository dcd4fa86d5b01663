"""Batches in the ledger: an episode is in one at most, and a batch is done once."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from call_helpers import make_call

from ajet_core.episode import EpisodeKind, EpisodeStatus
from ajet_core.errors import ConflictError, EpisodeClosedError
from ajet_server.capture import records, steps
from ajet_server.capture.calls import CallRecord, insert_calls
from ajet_server.capture.ledger import Ledger
from ajet_server.capture.records import EpisodeRecord


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "l") as ledger:
        yield ledger


def add(ledger: Ledger, name: str, status: EpisodeStatus | None = EpisodeStatus.FINISHED, kind: str = "train") -> str:
    record = EpisodeRecord(
        id=name,
        attempt_id=f"att_{name}",
        request_id=f"req_{name}",
        group_id="g",
        group_named=False,
        task_id="t",
        task="null",
        kind=EpisodeKind(kind),
        client_id="c",
        api_key_hash=f"a_{name}",
        control_key_hash=f"c_{name}",
        weight_version=0,
        opened_at=0.0,
    )

    def write(db: sqlite3.Connection) -> None:
        records.insert_episode(db, record)
        insert_calls(db, [call(name, 0)])
        if status is not None:
            records.close_episode(db, name, status, reward=1.0 if status == "finished" else None)

    ledger.write_now(write)
    return name


def call(episode: str, seq: int, version: int = 0) -> CallRecord:
    return make_call(f"call_{episode}_{seq}", episode, seq, weight_version=version)


def plan(ledger: Ledger, name: str, episodes: list[str], step: int = 1) -> None:
    ledger.write_now(lambda db: steps.plan_batch(db, steps.PlannedBatch(name, step), episodes))


def test_a_batch_is_planned_and_done(ledger: Ledger) -> None:
    add(ledger, "a")
    add(ledger, "b")
    plan(ledger, "batch", ["a"])
    assert ledger.read_now(steps.planned_batch) == steps.PlannedBatch("batch", 1)
    assert [row.episode_id for row in ledger.read_now(records.pool_rows)] == ["b"]
    (row,) = ledger.read_now(lambda db: records.batch_episodes(db, "batch"))
    assert (row.episode_id, [len(call.prompt_ids) for call in row.calls]) == ("a", [8])
    ledger.write_now(lambda db: steps.finish_batch(db, "batch", "first", "folder"))
    ledger.write_now(lambda db: steps.finish_batch(db, "batch", "second", "folder"))
    assert ledger.read_now(steps.planned_batch) is None
    assert ledger.read_now(steps.step_count) == 1
    report = ledger.read_now(lambda db: db.execute("SELECT report FROM batches").fetchone()[0])
    assert report == "first"


def test_no_episode_is_in_two_batches(ledger: Ledger) -> None:
    add(ledger, "a")
    add(ledger, "b")
    plan(ledger, "one", ["a"])
    with pytest.raises(ConflictError, match="episode a is not free"):
        plan(ledger, "two", ["b", "a"], step=2)
    assert [row.episode_id for row in ledger.read_now(records.pool_rows)] == ["b"], "nothing of it was kept"
    assert ledger.read_now(steps.planned_batch) == steps.PlannedBatch("one", 1)


@pytest.mark.parametrize("status", [None, EpisodeStatus.ABORTED, EpisodeStatus.EXPIRED])
def test_only_finished_episodes_are_taken(ledger: Ledger, status: EpisodeStatus | None) -> None:
    add(ledger, "a", status)
    with pytest.raises(ConflictError):
        plan(ledger, "batch", ["a"])


def test_no_evaluation_is_taken(ledger: Ledger) -> None:
    add(ledger, "a", kind="eval")
    assert ledger.read_now(records.pool_rows) == []
    with pytest.raises(ConflictError):
        plan(ledger, "batch", ["a"])


def test_stale_episodes_are_not_taken_and_taken_ones_are_not_stale(ledger: Ledger) -> None:
    add(ledger, "a")
    add(ledger, "b")
    plan(ledger, "one", ["a"])
    ledger.write_now(lambda db: records.mark_stale(db, ["a", "b"]))
    assert ledger.read_now(records.stale_count) == 1
    assert ledger.read_now(records.pool_rows) == []
    with pytest.raises(ConflictError):
        plan(ledger, "two", ["b"], step=2)


def test_a_step_is_done_once(ledger: Ledger) -> None:
    for name in "ab":
        add(ledger, name)
        plan(ledger, f"batch_{name}", [name])
    ledger.write_now(lambda db: steps.finish_batch(db, "batch_a", "r", "f"))
    with pytest.raises(sqlite3.IntegrityError):
        ledger.write_now(lambda db: steps.finish_batch(db, "batch_b", "r", "f"))


def test_late_calls_are_fenced_off(ledger: Ledger) -> None:
    add(ledger, "a")
    for episode in ("a", "nobody"):
        with pytest.raises(EpisodeClosedError, match="not recorded"):
            ledger.write_now(lambda db, name=episode: insert_calls(db, [call(name, 7)]))


def test_what_an_open_episode_has_so_far(ledger: Ledger) -> None:
    add(ledger, "a", status=None)
    ledger.write_now(lambda db: insert_calls(db, [call("a", 3, version=2)]))
    ((record, so_far),) = ledger.read_now(records.open_episodes)
    assert record.id == "a"
    assert (so_far.count, so_far.next_seq, so_far.oldest_version) == (2, 4, 0)
