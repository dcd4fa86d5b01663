"""Episodes in states that cannot be."""

import sqlite3
from collections.abc import Iterator

from ajet_server.capture.problem import Problem
from ajet_server.capture.steps import step_count

_ROLES = "SELECT key FROM json_each(iif(json_valid(e.rewards), e.rewards, '{}'))"
_CALL_WITHOUT_REWARD = f"""EXISTS (SELECT 1 FROM calls c WHERE c.episode_id = e.id AND
    iif(c.role IS NULL, e.rewards <> '{{}}', c.role NOT IN ({_ROLES})))"""  # noqa: S608 - our own names
_REWARD_WITHOUT_CALL = f"""EXISTS ({_ROLES} WHERE key NOT IN
    (SELECT c.role FROM calls c WHERE c.episode_id = e.id AND c.role IS NOT NULL))"""  # noqa: S608 - our own names
_RULES = {
    "e.status = 'open' AND (e.closed_at IS NOT NULL OR e.reward IS NOT NULL)": "is open, but has what closing gives",
    "e.status <> 'open' AND e.closed_at IS NULL": "is closed, but nobody knows when",
    "e.status = 'finished' AND e.reward IS NULL": "is finished without a reward",
    "abs(e.reward) > 1.7976931348623157e308": "has a reward that is not finite",
    "e.status IN ('aborted', 'expired') AND e.reward IS NOT NULL": "was lost, but has a reward",
    "e.status = 'finished' AND e.kind = 'train' AND NOT EXISTS (SELECT 1 FROM calls c WHERE c.episode_id = e.id)": (
        "is finished for training, but made no call"
    ),
    "e.batch_id IS NOT NULL AND (e.status <> 'finished' OR e.kind <> 'train')": (
        "is in a batch, but is no finished train episode"
    ),
    "e.stale = 1 AND (e.status <> 'finished' OR e.kind <> 'train')": "is set aside, but is no finished train episode",
    "e.stale = 1 AND e.batch_id IS NOT NULL": "is set aside, but in a batch",
    "e.dropped_at IS NOT NULL AND (e.status = 'open' OR b.status = 'planned' OR "
    "(e.status = 'finished' AND e.kind = 'train' AND e.stale = 0 AND e.batch_id IS NULL))": (
        "has lost what its calls held, but may still be trained"
    ),
    "NOT json_valid(e.rewards)": "has rewards that are no JSON",
    "e.status <> 'finished' AND e.rewards <> '{}'": "has rewards of roles, but is not finished",
    f"e.status = 'finished' AND ({_CALL_WITHOUT_REWARD} OR {_REWARD_WITHOUT_CALL})": (
        "has rewards for other roles than those that made calls"
    ),
    "e.status = 'finished' AND EXISTS (SELECT 1 FROM promises p WHERE p.episode_id = e.id AND "
    "(p.reward <> e.reward OR p.rewards <> e.rewards))": (
        "was finished with another reward than it had promised to its union"
    ),
    "NOT json_valid(e.metrics) OR NOT json_valid(e.task)": "has a task or metrics that are no JSON",
    "e.weights IS NOT NULL AND e.kind <> 'eval'": "names its weights, but is no eval episode",
    "e.weight_version NOT BETWEEN 0 AND :steps": "was opened with weights that no step has made",
}
"""By SQL condition: what is wrong where it holds."""


def check_episodes(db: sqlite3.Connection) -> Iterator[Problem]:
    """Finds episodes in states that cannot be."""
    values = {"steps": step_count(db)}
    for condition, message in _RULES.items():
        query = f"SELECT e.id FROM episodes e LEFT JOIN batches b ON b.id = e.batch_id WHERE {condition}"  # noqa: S608
        for row in db.execute(query, values):
            yield Problem("episode", row["id"], message)
