"""Batches: steps one after another, done once, and their reports."""

import sqlite3
from collections.abc import Iterator

from pydantic import ValidationError

from ajet_core.events import StepReport
from ajet_server.capture.problem import Problem

_BATCHES = """
    SELECT id, step, status, done_at, report, checkpoint,
        (SELECT count(*) FROM episodes e WHERE e.batch_id = batches.id) AS episodes
    FROM batches ORDER BY status = 'planned', step
"""


def check_batches(db: sqlite3.Connection) -> Iterator[Problem]:
    """Finds batches that break contract 2: at most one is planned, the next; those that are done have every step once.

    That no episode is in two batches is how the table is made: an episode names its batch. That it was trained once is
    that the batch's report counts just those episodes that name it.
    """
    planned, step = 0, 0
    for row in db.execute(_BATCHES):
        planned += row["status"] == "planned"
        wrong = _planned(row, planned) if row["status"] == "planned" else _done(row)
        if row["step"] != step + 1:
            wrong.append(f"is of step {row['step']}, where step {step + 1} should follow")
        if not row["episodes"]:
            wrong.append("has no episode")
        step = row["step"]
        yield from (Problem("batch", row["id"], message) for message in wrong)


def _planned(row: sqlite3.Row, planned: int) -> list[str]:
    wrong = ["is planned, but another one is planned already"] if planned > 1 else []
    if row["done_at"] is not None or row["report"] is not None or row["checkpoint"] is not None:
        wrong.append("is planned, but has what only a batch that is done has")
    return wrong


def _done(row: sqlite3.Row) -> list[str]:
    wrong = [f"is done without its {name}" for name in ("done_at", "report", "checkpoint") if row[name] is None]
    return wrong if row["report"] is None else [*wrong, *_report(row)]


def _report(row: sqlite3.Row) -> list[str]:
    try:
        report = StepReport.model_validate_json(row["report"])
    except ValidationError as error:
        return [f"has a report that cannot be read: {error.errors(include_url=False)[0]['msg']}"]
    expected = {"batch_id": row["id"], "step": row["step"], "weight_version": row["step"], "episodes": row["episodes"]}
    return [
        f"has a report whose {name} is {getattr(report, name)!r}, where {value!r} is right"
        for name, value in expected.items()
        if getattr(report, name) != value
    ]
