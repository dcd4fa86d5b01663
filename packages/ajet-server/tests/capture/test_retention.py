"""What is forgotten: only contents, only of what is settled, and the file becomes smaller."""

import sqlite3
from pathlib import Path

import pytest
from ledger_helpers import NOW, History, history, ids

from ajet_core.config import Job
from ajet_core.errors import StorageError
from ajet_server.capture import records, retention
from ajet_server.capture.calls import whole_calls
from ajet_server.capture.ledger import Ledger
from ajet_server.capture.retention import Dropped, Rule, compact, drop_some, droppable, give_back, prune

DAY = 86_400.0
LATER = NOW + 10 * DAY
EVERYTHING = Rule(0, 0.0, 0)


@pytest.fixture
def busy(past: History) -> History:
    """Three steps done, one planned, and episodes of every kind that wait or are settled."""
    for name in ("a", "b", "c"):
        past.episode(f"{name}1")
        past.episode(f"{name}2")
        past.train(f"{name}1", f"{name}2")
    past.episode("planned")
    past.plan("planned")
    past.episode("stale")
    past.stale("stale")
    past.episode("aborted", "aborted")
    past.episode("expired", "expired")
    past.episode("eval", kind="eval")
    past.episode("waits")
    past.open("open")
    past.call("open")
    past.open("open_eval", kind="eval")
    past.call("open_eval")
    return past


SETTLED = {"stale", "aborted", "expired", "eval"}
TRAINED = {"a1", "a2", "b1", "b2", "c1", "c2"}


@pytest.mark.parametrize(
    ("rule", "gone"),
    [
        (Rule(None, None, 0), set[str]()),
        (EVERYTHING, SETTLED | TRAINED),
        (Rule(0, None, 0), TRAINED),
        (Rule(0, None, 1), TRAINED - {"c1", "c2"}),
        (Rule(0, None, 9), set()),
        (Rule(1, None, 0), TRAINED - {"c1", "c2"}),
        (Rule(2, None, 0), TRAINED - {"c1", "c2"}),
        (Rule(3, None, 0), {"a1", "a2"}),
        (Rule(6, None, 0), set()),
        (Rule(7, None, 0), set()),
        (Rule(None, 9.0, 0), SETTLED | TRAINED),
        (Rule(None, 9.0, 2), SETTLED | {"a1", "a2"}),
        (Rule(None, 11.0, 0), set()),
        (Rule(3, 11.0, 0), {"a1", "a2"}),
    ],
)
def test_what_may_go(busy: History, rule: Rule, gone: set[str]) -> None:
    found = busy.ledger.read_now(lambda db: droppable(db, rule, LATER))
    assert set(found) == gone
    assert len(found) == len(gone)


def test_those_closed_first_go_first(past: History) -> None:
    for name, at in (("young", NOW), ("old", NOW - DAY)):
        past.episode(name, "aborted", at=at)
    dropped = past.ledger.write_now(lambda db: drop_some(db, EVERYTHING, LATER, 1))
    assert (dropped.episodes, past.dropped) == (1, {"old"})


def test_contents_go_and_everything_else_stays(busy: History) -> None:
    read = busy.ledger.read_now
    names = SETTLED | TRAINED | {"planned", "waits", "open", "open_eval"}
    views = {name: read(lambda db, n=name: records.episode_view(db, n)) for name in names}
    kept = {name: read(lambda db, n=name: whole_calls(db, n)) for name in names - SETTLED - TRAINED}
    pool, batch = read(records.pool_rows), read(lambda db: records.batch_episodes(db, "batch_4"))
    dropped = busy.ledger.write_now(lambda db: drop_some(db, EVERYTHING, LATER))
    assert (dropped.episodes, dropped.calls) == (10, 20)
    assert dropped.bytes > 20 * (8 + 8 + 8)
    assert busy.dropped == SETTLED | TRAINED
    assert {name: read(lambda db, n=name: records.episode_view(db, n)) for name in names} == views
    assert {name: read(lambda db, n=name: whole_calls(db, n)) for name in kept} == kept
    assert read(records.pool_rows) == pool
    assert read(lambda db: records.batch_episodes(db, "batch_4")) == batch
    left = busy.sql(
        "SELECT DISTINCT length(prompt_ids) + length(completion_ids) + length(logprobs), messages, response, sampling"
        " FROM calls WHERE episode_id = 'a1'"
    )
    assert left == [(0, "[]", "{}", "{}")]


def test_again_there_is_nothing_to_do(busy: History) -> None:
    assert prune(busy.ledger, EVERYTHING).episodes == 10
    assert prune(busy.ledger, EVERYTHING) == Dropped()


def test_a_drop_that_is_cut_off_drops_nothing(busy: History) -> None:
    def fail(db: sqlite3.Connection) -> None:
        drop_some(db, EVERYTHING, LATER)
        raise RuntimeError("the power fails")

    with pytest.raises(RuntimeError):
        busy.ledger.write_now(fail)
    assert busy.dropped == set()
    assert len(busy.ledger.read_now(lambda db: whole_calls(db, "a1"))) == 2


def fill(past: History, name: str = "big") -> None:
    past.open(name)
    past.call(name, prompt_ids=ids(*range(200_000)), prompt_tokens=200_000)
    past.close(name, "aborted", at=0.0)


def test_the_file_shrinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_PAGES", 50)
    file = tmp_path / "l"
    with history(file) as past:
        fill(past)
    before = file.stat().st_size
    with Ledger(file) as ledger:
        assert prune(ledger, Rule(None, 1.0, 1)).bytes > 800_000
        assert ledger.read_now(lambda db: db.execute("PRAGMA freelist_count").fetchone()[0]) == 0
    assert file.stat().st_size < before - 700_000


def test_it_shrinks_too_where_each_page_holds_several_calls(tmp_path: Path) -> None:
    file = tmp_path / "l"
    with history(file) as past:
        past.open("many")
        for number in range(400):
            past.call("many", number, prompt_ids=ids(*range(250)), prompt_tokens=250)
        past.close("many", "aborted", at=0.0)
    before = file.stat().st_size
    with Ledger(file) as ledger:
        prune(ledger, Rule(None, 1.0, 1))
    assert file.stat().st_size < before / 2


def test_a_file_of_an_older_ajet_shrinks_once_compacted(tmp_path: Path) -> None:
    file = tmp_path / "l"
    with sqlite3.connect(file) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE gone (a)")
        db.execute("DROP TABLE gone")
    db.close()
    with history(file) as past:
        fill(past)
        prune(past.ledger, Rule(None, 1.0, 1))
        assert not past.ledger.write_now(give_back)
        past.episode("a")
    before = file.stat().st_size
    compact(file)
    assert file.stat().st_size < before - 700_000
    size = file.stat()
    compact(file)
    assert file.stat() == size, "once is enough"
    with history(file) as past:
        assert len(past.ledger.read_now(lambda db: whole_calls(db, "a"))) == 2
        assert past.sql("PRAGMA auto_vacuum") == [(2,)]


def test_a_disk_that_refuses_is_told(tmp_path: Path) -> None:
    (tmp_path / "l").write_bytes(b"this is no database at all" * 100)
    with pytest.raises(StorageError, match="could not be compacted"):
        compact(tmp_path / "l")


def test_a_jobs_rule() -> None:
    job = {"model": {"path": "m"}, "checkpoint": {"keep": 3}}
    assert Rule.of(Job.model_validate(job)) == Rule(None, None, 3)
    assert not Rule.of(Job.model_validate(job)).bounded
    kept = Job.model_validate(job | {"retention": {"trained_episodes": 500, "days": 0.5}})
    assert Rule.of(kept) == Rule(500, 0.5, 3)


def test_the_search_uses_its_index(past: History) -> None:
    query = f"EXPLAIN QUERY PLAN SELECT e.id {retention._DROPPABLE}"
    values = {"newest_safe": 0, "closed_before": 0.0, "trained_before": 0}
    plan = past.ledger.read_now(lambda db: [row["detail"] for row in db.execute(query, values)])
    assert any("COVERING INDEX episodes_undropped" in step for step in plan), plan
