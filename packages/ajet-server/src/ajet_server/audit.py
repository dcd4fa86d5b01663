"""`ajet ledger check`: the ledger and the checkpoints of a data folder, and whether they agree."""

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ajet_core.errors import StorageError
from ajet_server.capture.check import check
from ajet_server.capture.problem import Problem
from ajet_server.capture.reading import look, snapshot
from ajet_server.datadir import checkpoint_name, ledger_path
from ajet_server.train.checkpoint import read_manifest

_KEPT = 1000


@dataclass(slots=True)
class Audit:
    """What was found.

    Attributes:
        episodes: looked at.
        calls: looked at.
        batches: looked at.
        checkpoints: looked at.
        found: problems.
        problems: the first thousand of them.
    """

    episodes: int = 0
    calls: int = 0
    batches: int = 0
    checkpoints: int = 0
    found: int = 0
    problems: list[Problem] = field(default_factory=list[Problem])


def audit(data_dir: Path, on_call: Callable[[int, int], object] = lambda done, total: None) -> Audit:
    """Checks a data folder. Changes nothing; a server may run on it, whose log grows meanwhile.

    Args:
        data_dir: the folder.
        on_call: called with the calls looked at and all calls.

    Raises:
        StorageError: there is no ledger, or it cannot be read at all.
    """
    found = Audit()
    look(ledger_path(data_dir), lambda db: _audit(db, data_dir, found, on_call))
    return found


def _audit(db: sqlite3.Connection, data_dir: Path, found: Audit, on_call: Callable[[int, int], object]) -> None:
    def one_more() -> None:
        found.calls += 1
        on_call(found.calls, total)

    with snapshot(db):
        batches = db.execute("SELECT id, step, status FROM batches ORDER BY step").fetchall()
        folders = _folders(data_dir.expanduser() / "checkpoints")
        total, found.batches, found.checkpoints = _count(db, "calls"), len(batches), len(folders)
        found.episodes = _count(db, "episodes")
        for problem in check(db, one_more):
            _note(found, problem)
    for problem in _checkpoints(folders, batches):
        _note(found, problem)


def _count(db: sqlite3.Connection, table: str) -> int:
    return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608 - our own names


def _note(found: Audit, problem: Problem) -> None:
    found.found += 1
    if len(found.problems) < _KEPT:
        found.problems.append(problem)


def _folders(directory: Path) -> dict[int, Path]:
    """The checkpoints that are there, by step; read in the moment of the ledger's snapshot."""
    steps = {folder: folder.name.removeprefix("step-") for folder in directory.glob("step-*")}
    numbers = {folder: int(step) for folder, step in steps.items() if step.isdecimal()}
    return {step: folder for folder, step in sorted(numbers.items()) if folder.name == checkpoint_name(step)}


def _checkpoints(folders: dict[int, Path], batches: list[sqlite3.Row]) -> Iterator[Problem]:
    """Every checkpoint is whole and of the batch that the ledger knows; the newest step has one, older ones may."""
    known = {row["step"]: row["id"] for row in batches}
    done = max((row["step"] for row in batches if row["status"] == "done"), default=0)
    # A crash between a checkpoint and its record leaves that of the planned batch, for which an older one may be gone.
    if done and done not in folders and done + 1 not in folders:
        yield Problem("checkpoint", checkpoint_name(done), "is missing, though its step is the newest that is done")
    for step, folder in folders.items():
        yield from _checkpoint(folder, known.get(step))


def _checkpoint(folder: Path, batch_id: str | None) -> Iterator[Problem]:
    if batch_id is None:
        yield Problem("checkpoint", folder.name, "is of a step that the ledger does not know")
    try:
        found = read_manifest(folder).batch_id
    except StorageError as error:
        if folder.exists():  # else a running server has pruned it
            yield Problem("checkpoint", folder.name, f"cannot be used: {error.message}")
        return
    if batch_id is not None and found != batch_id:
        yield Problem("checkpoint", folder.name, f"is of batch {found}, where the ledger has {batch_id}")
