"""A data folder as a whole: ledger and checkpoints agree, or it is said which does not."""

import shutil
from pathlib import Path

import pytest
from ledger_helpers import History, history

from ajet_core.config import Job
from ajet_core.errors import StorageError
from ajet_core.events import StepReport
from ajet_server.audit import audit
from ajet_server.datadir import ledger_path
from ajet_server.train.checkpoint import Manifest, checkpoint_name, write_checkpoint


def checkpoint(folder: Path, past: History, step: int, batch_id: str | None = None) -> Path:
    """What the trainer leaves of a step."""
    query = "SELECT report FROM batches WHERE step = 1"
    report = StepReport.model_validate_json(past.ledger.read_now(lambda db: db.execute(query).fetchone()[0]))
    report = report.model_copy(update={"step": step, "batch_id": batch_id or f"batch_{step}"})
    job = Job.model_validate({"model": {"path": "m"}})
    return write_checkpoint(
        folder / "checkpoints",
        step,
        lambda work: (work / "weights").write_bytes(b"1234") and None,
        lambda files: Manifest.of(job, report, files),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two steps done, with the checkpoint of the second; one planned."""
    with history(ledger_path(tmp_path)) as past:
        for name in "abc":
            past.episode(name)
        past.train("a")
        past.train("b")
        past.plan("c")
        checkpoint(tmp_path, past, 2)
    return tmp_path


def messages(folder: Path) -> list[str]:
    return [str(problem) for problem in audit(folder).problems]


def test_a_folder_in_order(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    found = audit(folder, lambda done, total: seen.append((done, total)))
    assert (found.episodes, found.calls, found.batches, found.checkpoints, found.found) == (3, 6, 3, 1, 0)
    assert seen == [(number, 6) for number in range(1, 7)]


def test_a_crash_between_a_checkpoint_and_its_record_is_in_order(folder: Path) -> None:
    with history(ledger_path(folder)) as past:
        checkpoint(folder, past, 3)
    assert messages(folder) == []
    shutil.rmtree(folder / "checkpoints" / checkpoint_name(2))  # `checkpoint.keep: 1`
    assert messages(folder) == []


def test_the_newest_checkpoint_is_missing(folder: Path) -> None:
    shutil.rmtree(folder / "checkpoints" / checkpoint_name(2))
    assert messages(folder) == ["checkpoint step-000002 is missing, though its step is the newest that is done"]


def test_a_damaged_checkpoint(folder: Path) -> None:
    (folder / "checkpoints" / checkpoint_name(2) / "weights").write_bytes(b"1235")
    (message,) = messages(folder)
    assert message.startswith("checkpoint step-000002 cannot be used")
    assert "SHA-256" in message


def test_a_checkpoint_of_another_batch(folder: Path) -> None:
    with history(ledger_path(folder)) as past:
        checkpoint(folder, past, 3, "batch_x")
        checkpoint(folder, past, 4)
    assert messages(folder) == [
        "checkpoint step-000003 is of batch batch_x, where the ledger has batch_3",
        "checkpoint step-000004 is of a step that the ledger does not know",
    ]


def test_what_is_no_checkpoint_does_not_count(folder: Path) -> None:
    for name in ("step-2", "step-old", ".writing-step-000003-x"):
        (folder / "checkpoints" / name).mkdir()
    assert audit(folder).checkpoints == 1


def test_problems_are_counted_beyond_those_that_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ajet_server.audit._KEPT", 2)
    with history(ledger_path(folder)) as past:
        past.sql("UPDATE episodes SET metrics = '{'")
    found = audit(folder)
    assert (found.found, len(found.problems)) == (3, 2)


def test_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there is no ledger"):
        audit(tmp_path)


def test_while_a_server_runs(folder: Path) -> None:
    with history(ledger_path(folder)) as past:
        past.open("d")
        assert audit(folder).episodes == 4
