"""What is exported is what was captured, to the bit, in whole files only."""

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from ledger_helpers import History, ids

from ajet_core.errors import ConfigError, NotFoundError, RequestError, StorageError
from ajet_merge import read_calls
from ajet_merge.records import read_records
from ajet_server.capture.browse import EpisodeFilter
from ajet_server.capture.calls import whole_calls
from ajet_server.capture.export import Exported, export_calls, export_episodes
from ajet_server.capture.reading import look
from ajet_server.capture.retention import Rule, prune

EVERYTHING = EpisodeFilter()


def export(past: History, file: Path, wanted: EpisodeFilter = EVERYTHING) -> Exported:
    return look(past.ledger.file, lambda db: export_calls(db, wanted, file))


@pytest.mark.parametrize("name", ["calls.jsonl", "calls.jsonl.gz", "calls.parquet"])
def test_calls_are_read_back_whole(past: History, tmp_path: Path, name: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    for episode in ("a", "b"):
        past.episode(episode)
    seen: list[int] = []
    done = look(past.ledger.file, lambda db: export_calls(db, EVERYTHING, tmp_path / name, seen.append))
    assert (done.calls, done.tokens, done.dropped, done.episode_ids) == (4, 24, 0, ["a", "b"])
    assert seen == [1, 2]
    read = read_records(tmp_path / name)
    whole = [call for episode in ("a", "b") for call in past.ledger.read_now(lambda db, e=episode: whole_calls(db, e))]
    for record, call in zip(read, whole, strict=True):
        assert record.call.prompt_ids.tobytes() == call.prompt_ids
        assert record.call.completion_ids.tobytes() == call.record.completion_ids
        assert record.call.logprobs.tobytes() == call.record.logprobs
        assert (record.call.call_id, record.call.episode_id) == (call.record.id, call.record.episode_id)
        assert (record.call.attempt_id, record.call.group_id) == (f"att_{call.record.episode_id}", "g")
        assert record.context is not None
        assert list(record.context.messages) == call.messages
        assert record.context.response == call.response
        assert not record.call.advantage.any()
    assert [message["content"] for message in read[1].context.messages] == ["turn 0", "answer 0", "turn 1"]  # type: ignore[union-attr]


def test_a_raw_prompt_has_no_context(past: History, tmp_path: Path) -> None:
    past.open("a")
    past.call("a", messages="[]")
    export(past, tmp_path / "c.jsonl")
    (record,) = read_records(tmp_path / "c.jsonl")
    assert record.context is None
    assert np.array_equal(record.call.prompt_ids, [1, 2])


def test_tools_come_along(past: History, tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    past.open("a")
    past.call("a", tools=json.dumps(tools))
    export(past, tmp_path / "c.jsonl")
    (record,) = read_records(tmp_path / "c.jsonl")
    assert record.context is not None
    assert list(record.context.tools) == tools


def test_rewards_are_labels_of_episodes(past: History, tmp_path: Path) -> None:
    past.episode("a")
    past.episode("b", "aborted")
    look(past.ledger.file, lambda db: export_episodes(db, ["a", "b"], tmp_path / "e.jsonl"))
    lines = [json.loads(line) for line in (tmp_path / "e.jsonl").read_text().splitlines()]
    assert [(line["episode_id"], line["reward"], line["status"]) for line in lines] == [
        ("a", 1.0, "finished"), ("b", None, "aborted"),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"must be \.jsonl"):
        look(past.ledger.file, lambda db: export_episodes(db, ["a"], tmp_path / "e.parquet"))


def test_versions_of_tokens_are_told_by_call(past: History, tmp_path: Path) -> None:
    past.open("a")
    past.call("a", 0, version_spans="[[0,0],[1,4]]")
    past.call("a", 1, weight_version=2)
    look(past.ledger.file, lambda db: export_episodes(db, ["a"], tmp_path / "e.jsonl"))
    (line,) = map(json.loads, (tmp_path / "e.jsonl").read_text().splitlines())
    assert line["weight_versions"] == {"call_a_0": [[0, 0], [1, 4]], "call_a_1": [[0, 2]]}


def test_what_was_dropped_is_left_out_and_counted(past: History, tmp_path: Path) -> None:
    past.episode("a", "aborted", at=0.0)
    prune(past.ledger, Rule(None, 1.0, 1))
    with pytest.raises(NotFoundError, match="dropped in all 1"):
        export(past, tmp_path / "c.jsonl")
    past.episode("b")
    done = export(past, tmp_path / "c.jsonl")
    assert (done.dropped, done.episode_ids) == (1, ["b"])


def test_nothing_to_write(past: History, tmp_path: Path) -> None:
    past.open("a")
    with pytest.raises(NotFoundError, match="no such episode has a call"):
        export(past, tmp_path / "c.jsonl")
    assert not (tmp_path / "c.jsonl").exists()


def test_a_call_that_does_not_add_up_leaves_the_file_as_it_was(past: History, tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    past.episode("a")
    export(past, file)
    before = file.read_bytes()
    past.episode("b")
    past.sql("UPDATE calls SET prompt_ids = ? WHERE id = 'call_b_1'", ids(1))
    with pytest.raises(StorageError, match="call_b_1"):
        export(past, file)
    assert file.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir() if path.suffix == ".partial"} == set()


def test_what_no_file_can_hold(past: History, tmp_path: Path) -> None:
    past.episode("a")
    with pytest.raises(RequestError, match="suffix"):
        export(past, tmp_path / "c.csv")
    past.sql("UPDATE calls SET logprobs = ? WHERE id = 'call_a_0'", ids(1))
    with pytest.raises(RequestError, match="call_a_0"):
        export(past, tmp_path / "c.jsonl")


def test_episodes_may_come_and_go_meanwhile(past: History, tmp_path: Path) -> None:
    """No query stays open between episodes: a server that writes is not held up, and its log does not grow."""
    for name in "abc":
        past.episode(name)
    free: list[tuple[int, int, int]] = []

    def truncate(looked_at: int) -> None:
        with sqlite3.connect(past.ledger.file) as db:
            free.append(db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone())
        db.close()
        past.episode(f"new{looked_at}") if looked_at < 3 else None

    look(past.ledger.file, lambda db: export_calls(db, EpisodeFilter(), tmp_path / "c.jsonl", truncate))
    assert {busy for busy, _, _ in free} == {0}
    assert len(read_calls(tmp_path / "c.jsonl")) >= 6


def test_roles_are_labels_too(past: History, tmp_path: Path) -> None:
    past.open("a")
    calls = [past.call("a", seq, role=role) for seq, role in enumerate(("white", "black", "white"))]
    past.close("a", rewards={"white": 1.0, "black": 0.0})
    past.episode("b")
    look(past.ledger.file, lambda db: export_episodes(db, ["a", "b"], tmp_path / "e.jsonl"))
    first, second = (json.loads(line) for line in (tmp_path / "e.jsonl").read_text().splitlines())
    assert first["rewards"] == {"black": 0.0, "white": 1.0}
    assert first["roles"] == dict(zip(calls, ("white", "black", "white"), strict=True))
    assert (second["rewards"], second["roles"]) == ({}, {})
