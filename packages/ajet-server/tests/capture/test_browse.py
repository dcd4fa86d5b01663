"""Episodes are listed as they are, from indexes."""

import sqlite3

import pytest
from ledger_helpers import NOW, History

from ajet_core.episode import EpisodeKind, EpisodeStatus
from ajet_core.errors import NotFoundError
from ajet_server.capture import browse
from ajet_server.capture.browse import EpisodeFilter, episode_ids, episode_line, newest_episodes, read_episode

OPEN, FINISHED, ABORTED = EpisodeStatus.OPEN, EpisodeStatus.FINISHED, EpisodeStatus.ABORTED


@pytest.fixture
def several(past: History) -> History:
    past.episode("a", group="g1", task="t1")
    past.episode("b", "aborted", group="g1", task="t1")
    past.episode("c", kind="eval", group="g2", task="t2")
    past.open("d", group="g2", task="t2")
    return past


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (EpisodeFilter(), "dcba"),
        (EpisodeFilter((FINISHED,)), "ca"),
        (EpisodeFilter((OPEN, ABORTED)), "db"),
        (EpisodeFilter(kind=EpisodeKind.EVAL), "c"),
        (EpisodeFilter((FINISHED,), EpisodeKind.TRAIN), "a"),
        (EpisodeFilter(group_id="g1"), "ba"),
        (EpisodeFilter(task_id="t2"), "dc"),
        (EpisodeFilter(task_id="t2", group_id="g1"), ""),
        (EpisodeFilter(group_id="' OR 1 --"), ""),
    ],
)
def test_filters(several: History, wanted: EpisodeFilter, names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browse, "_PAGE", 1)
    with sqlite3.connect(several.ledger.file) as db:
        db.row_factory = sqlite3.Row
        assert [line.episode_id for line in newest_episodes(db, wanted, 9)] == list(names)
        assert [line.episode_id for line in newest_episodes(db, wanted, 1)] == list(names[:1])
        assert list(episode_ids(db, wanted)) == list(names[::-1])
        assert browse.count_episodes(db, wanted) == len(names)
    db.close()


def test_a_line_says_it_all(past: History) -> None:
    past.episode("x")
    past.train("x")
    past.open("a", group="g", task="t")
    past.call("a", 0)
    past.call("a", 1, "call_a_0", known=4, weight_version=3)
    past.close("a", reward=0.5, at=NOW + 9)
    past.plan("a")
    line = past.ledger.read_now(lambda db: episode_line(db, "a"))
    assert (line.attempt_id, line.group_id, line.task_id, line.kind, line.status) == (
        "att_a", "g", "t", "train", "finished",
    )  # fmt: skip
    assert (line.reward, line.metrics, line.calls, line.prompt_tokens, line.completion_tokens) == (0.5, {}, 2, 8, 4)
    assert (line.weight_version, line.oldest_version, line.newest_version) == (1, 1, 3)
    assert (line.opened_at, line.closed_at, line.batch_id, line.step) == (NOW + 2, NOW + 9, "batch_2", 2)
    assert (line.stale, line.dropped_at) == (False, None)


def test_the_newest_version_is_that_of_any_token(past: History) -> None:
    past.open("a")
    past.call("a", 0, version_spans="[[0,0],[1,4]]")
    past.call("a", 1, weight_version=2)
    line = past.ledger.read_now(lambda db: episode_line(db, "a"))
    assert (line.oldest_version, line.newest_version) == (0, 4)


def test_an_episode_that_is_not_there(past: History) -> None:
    with pytest.raises(NotFoundError, match="no episode x"):
        past.ledger.read_now(lambda db: read_episode(db, "x"))


def test_sizes_come_from_an_index(past: History) -> None:
    query = f"EXPLAIN QUERY PLAN {browse._LINE}"
    plan = past.ledger.read_now(lambda db: [row["detail"] for row in db.execute(query, ("a",))])
    assert any("COVERING INDEX calls_sizes" in step for step in plan), plan
