"""`ajet episodes passk`."""

from collections.abc import Sequence
from dataclasses import asdict
from sqlite3 import Connection
from typing import TYPE_CHECKING, Any

from ajet_cli.commands.merge import drawing

if TYPE_CHECKING:
    from ajet_server.capture.evaluations import Evaluation


def collect(db: Connection, success: float, ks: Sequence[int], task_id: str | None) -> "list[Evaluation]":
    """Returns what the ledger says of each weight version."""
    from ajet_server.capture.evaluations import evaluations

    return evaluations(db, success, ks, task_id)


def as_dict(found: "Sequence[Evaluation]", success: float) -> dict[str, Any]:
    """Returns the object of the `--json` line."""
    return {"success": success, "weights": [asdict(one) for one in found]}


def describe(found: "Sequence[Evaluation]") -> str:
    """Returns the same for a person."""
    return drawing.lines(*map(_line, found)) if found else "no finished eval episode"


def _line(one: "Evaluation") -> str:
    lost = f", {one.lost} lost" if one.lost else ""
    episodes = f"{drawing.counted(one.episodes, 'episode')} of {drawing.counted(one.tasks, 'task')}{lost}"
    return f"weights {one.weight_version}: {episodes}   {'   '.join(map(str, one.passes))}"
