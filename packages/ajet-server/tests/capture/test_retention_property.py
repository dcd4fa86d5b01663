"""Contract 2 under any history: whatever is opened, lost, finished, planned, trained, dropped or cut off by a crash."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from ledger_helpers import NOW, History

from ajet_server.capture import records, steps
from ajet_server.capture.calls import whole_calls
from ajet_server.capture.check import check
from ajet_server.capture.ledger import Ledger
from ajet_server.capture.retention import Rule, drop_some, give_back

KEEP = 1
DAY = 86_400.0


class LedgerMachine(RuleBasedStateMachine):
    """A server's writes in any order; a crash leaves just what was acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = Path(tempfile.mkdtemp())
        self._lives = 0
        self._history = History(Ledger(self._folder / "0"))
        self._names = 0
        self.open: set[str] = set()
        self.waiting: set[str] = set()
        self.planned: list[str] = []
        self.trained: list[list[str]] = []
        self.days = 0.0

    def teardown(self) -> None:
        self._history.ledger.close()
        shutil.rmtree(self._folder)

    @rule(kind=st.sampled_from(["train", "train", "eval"]), turns=st.integers(1, 3))
    def open_episode(self, kind: str, turns: int) -> None:
        self._names += 1
        name = self._history.open(f"e{self._names}", kind)
        for turn in range(turns):
            parent = f"call_{name}_{turn - 1}" if turn else None
            self._history.call(name, turn, parent, known=4 * turn)
        self.open.add(name)

    @rule(number=st.integers(1, 2))
    def finish_some(self, number: int) -> None:
        for _ in range(number):
            self.open_episode("train", 2)
            name = f"e{self._names}"
            self._history.close(name, at=NOW + self.days * DAY)
            self.open.remove(name)
            self.waiting.add(name)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), status=st.sampled_from(["finished", "finished", "aborted", "expired"]))
    def close_episode(self, data: st.DataObject, status: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        self._history.close(name, status, at=NOW + self.days * DAY)
        self.open.remove(name)
        ((kind,),) = self._history.sql("SELECT kind FROM episodes WHERE id = ?", name)
        if status == "finished" and kind == "train":
            self.waiting.add(name)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def set_aside(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.waiting)))
        self._history.stale(name)
        self.waiting.remove(name)

    @precondition(lambda self: self.waiting and not self.planned)
    @rule(data=st.data())
    def plan(self, data: st.DataObject) -> None:
        self.planned = data.draw(st.lists(st.sampled_from(sorted(self.waiting)), min_size=1, max_size=3, unique=True))
        self._history.plan(*self.planned)
        self.waiting -= set(self.planned)

    @precondition(lambda self: self.planned)
    @rule()
    def finish_step(self) -> None:
        self._history.done()
        self.trained.append(self.planned)
        self.planned = []

    @rule(days=st.sampled_from([0.5, 2.0]))
    def time_passes(self, days: float) -> None:
        self.days += days

    @rule(trained=st.sampled_from([None, 0, 1, 3]), days=st.sampled_from([None, 0.0, 1.0]), limit=st.integers(1, 9))
    def prune(self, trained: int | None, days: float | None, limit: int) -> None:
        bound, now = Rule(trained, days, KEEP), NOW + self.days * DAY
        self._history.ledger.write_now(lambda db: drop_some(db, bound, now, limit))
        self._history.ledger.write_now(give_back)

    @rule()
    def crash(self) -> None:
        """The files as they lie on the disk at this moment, opened by another process."""
        old, self._lives = self._folder / str(self._lives), self._lives + 1
        new = self._folder / str(self._lives)
        for suffix in ("", "-wal"):
            shutil.copy(f"{old}{suffix}", f"{new}{suffix}")
        before, self._history = self._history, History(Ledger(new))
        self._history._opened = before._opened
        before.ledger.close()

    @invariant()
    def contract_2(self) -> None:
        read = self._history.ledger.read_now
        assert list(read(lambda db: list(check(db)))) == []
        assert {row.episode_id for row in read(records.pool_rows)} == self.waiting
        assert {record.id for record, _ in read(records.open_episodes)} == self.open
        assert read(steps.step_count) == len(self.trained)
        for step, names in enumerate(self.trained, 1):
            found = self._history.sql("SELECT id FROM episodes WHERE batch_id = ?", f"batch_{step}")
            assert {name for (name,) in found} == set(names)

    @invariant()
    def what_may_be_needed_is_whole(self) -> None:
        redone = [name for names in self.trained[-KEEP:] for name in names]
        for name in [*self.open, *self.waiting, *self.planned, *redone]:
            calls = self._history.ledger.read_now(lambda db, name=name: whole_calls(db, name))
            assert calls
            assert all(len(call.prompt_ids) == 4 * call.record.prompt_tokens for call in calls)
        if self.planned:
            rows = self._history.ledger.read_now(
                lambda db: records.batch_episodes(db, f"batch_{len(self.trained) + 1}")
            )
            assert {row.episode_id for row in rows} == set(self.planned)


LedgerMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
test_any_history = pytest.mark.timeout(300)(LedgerMachine.TestCase)
