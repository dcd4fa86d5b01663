"""A ledger with a history, told in a few words."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from call_helpers import make_call

from ajet_core.episode import EpisodeKind, EpisodeStatus
from ajet_core.events import StepReport
from ajet_server.capture import records, steps
from ajet_server.capture.calls import MOST_AT_ONCE, CallRecord, insert_calls
from ajet_server.capture.ledger import Ledger
from ajet_server.capture.records import EpisodeRecord
from ajet_server.capture.writes import Bulk

NOW = 1_000_000.0


def ids(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


def probabilities(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


def make_report(batch_id: str, step: int, episodes: int) -> str:
    needed = {name: 0 for name, field in StepReport.model_fields.items() if field.is_required()}
    values = {"batch_id": batch_id, "step": step, "weight_version": step, "episodes": episodes}
    typed = {"skipped": False, "seconds": {}}
    return StepReport.model_validate(
        needed | {k: v for k, v in typed.items() if k in needed} | values
    ).model_dump_json()


class History:
    """Writes into a ledger what a server would."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._opened = 0

    @property
    def step(self) -> int:
        return self.ledger.read_now(steps.step_count)

    def open(self, name: str, kind: str = "train", group: str = "g", task: str = "t") -> str:
        self._opened += 1
        record = EpisodeRecord(
            name, f"att_{name}", f"req_{name}", group, False, task, '"do it"', EpisodeKind(kind), "cli", f"a_{name}",
            f"c_{name}", self.step, NOW + self._opened,
        )  # fmt: skip
        self.ledger.write_now(lambda db: records.insert_episode(db, record))
        return name

    def call(self, name: str, seq: int = 0, parent: str | None = None, known: int = 0, **fields: Any) -> str:
        """A call of two new prompt tokens and two sampled ones; `known` tokens are the parent's."""
        message = {"role": "user", "content": f"turn {seq}"}
        call = make_call(
            f"call_{name}_{seq}", name, seq, **{
                "parent_id": parent, "prompt_ids": ids(1, 2), "prompt_tokens": known + 2, "completion_ids": ids(3, 4),
                "logprobs": probabilities(-0.5, -1.0), "weight_version": self.step, "messages": json.dumps([message]),
                "response": json.dumps({"role": "assistant", "content": f"answer {seq}"}),
            } | fields,
        )  # fmt: skip
        self.record(call)
        return call.id

    def record(self, call: CallRecord) -> None:
        self.ledger.write_now(Bulk(insert_calls, [call], MOST_AT_ONCE))

    def close(
        self,
        name: str,
        status: str = "finished",
        reward: float | None = 1.0,
        at: float = NOW,
        rewards: dict[str, float] | None = None,
    ) -> None:
        given = reward if status == "finished" else None

        def write(db: sqlite3.Connection) -> None:
            reason = None if given else "lost"
            records.close_episode(db, name, EpisodeStatus(status), reward=given, rewards=rewards, reason=reason)
            db.execute("UPDATE episodes SET closed_at = ? WHERE id = ?", (at, name))

        self.ledger.write_now(write)

    def episode(self, name: str, status: str = "finished", at: float = NOW, **opened: str) -> str:
        """An episode of two turns, closed."""
        self.open(name, **opened)
        self.call(name, 1, self.call(name), known=4)
        self.close(name, status, at=at)
        return name

    def stale(self, *names: str) -> None:
        self.ledger.write_now(lambda db: records.mark_stale(db, list(names)))

    def plan(self, *names: str) -> str:
        batch = steps.PlannedBatch(f"batch_{self.step + 1}", self.step + 1)
        self.ledger.write_now(lambda db: steps.plan_batch(db, batch, list(names)))
        return batch.batch_id

    def done(self) -> None:
        planned = self.ledger.read_now(steps.planned_batch)
        assert planned is not None
        query = "SELECT count(*) FROM episodes WHERE batch_id = ?"
        count = self.ledger.read_now(lambda db: db.execute(query, (planned.batch_id,)).fetchone()[0])
        report = make_report(planned.batch_id, planned.step, count)
        self.ledger.write_now(lambda db: steps.finish_batch(db, planned.batch_id, report, "folder"))

    def train(self, *names: str) -> None:
        self.plan(*names)
        self.done()

    def sql(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """Anything at all, behind the server's back."""

        def write(db: sqlite3.Connection) -> list[tuple[Any, ...]]:
            return [tuple(row) for row in db.execute(text, values)]

        return self.ledger.write_now(write)

    @property
    def dropped(self) -> set[str]:
        return {row[0] for row in self.sql("SELECT id FROM episodes WHERE dropped_at IS NOT NULL")}


@contextmanager
def history(file: Path) -> Iterator[History]:
    with Ledger(file) as ledger:
        yield History(ledger)
