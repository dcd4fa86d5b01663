"""What eval episodes say of weight versions: pass@k."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from ajet_core.passk import PassAt, mean_pass_at, powers_of_two

_COUNTS = """
    SELECT weight_version, task_id, count(*) AS episodes, sum(reward >= ?) AS successes FROM episodes
    WHERE kind = 'eval' AND status = 'finished' AND (? IS NULL OR task_id = ?) GROUP BY weight_version, task_id
"""
_LOST = """
    SELECT weight_version, count(*) AS lost FROM episodes
    WHERE kind = 'eval' AND status IN ('aborted', 'expired') AND (? IS NULL OR task_id = ?) GROUP BY weight_version
"""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A weight version, evaluated.

    Attributes:
        weight_version: the one that the episodes name, else that of their opening.
        tasks: with a finished episode.
        episodes: finished.
        lost: aborted or expired. They have no reward and count nowhere.
        passes: pass@k by k.
    """

    weight_version: int
    tasks: int
    episodes: int
    lost: int
    passes: tuple[PassAt, ...]


def evaluations(db: sqlite3.Connection, success: float, ks: Sequence[int], task_id: str | None) -> list[Evaluation]:
    """Returns pass@k of each weight version with a finished eval episode, the oldest first.

    Args:
        db: a ledger.
        success: the least reward that is a success.
        ks: the values of k; none: 1, 2, 4, ... as far as a task has episodes.
        task_id: only this task.
    """
    counts: dict[int, list[tuple[int, int]]] = {}
    for row in db.execute(_COUNTS, (success, task_id, task_id)):
        counts.setdefault(row["weight_version"], []).append((row["episodes"], row["successes"]))
    lost = {row["weight_version"]: row["lost"] for row in db.execute(_LOST, (task_id, task_id))}
    return [_evaluation(version, tasks, lost.get(version, 0), ks) for version, tasks in sorted(counts.items())]


def _evaluation(version: int, tasks: list[tuple[int, int]], lost: int, ks: Sequence[int]) -> Evaluation:
    wanted = ks or powers_of_two(max(episodes for episodes, _ in tasks))
    passes = tuple(mean_pass_at(tasks, k) for k in wanted)
    return Evaluation(version, len(tasks), sum(episodes for episodes, _ in tasks), lost, passes)
