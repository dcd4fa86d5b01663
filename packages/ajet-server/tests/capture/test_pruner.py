"""The janitor forgets in small steps, and rests when there is nothing left."""

import logging
from dataclasses import dataclass
from pathlib import Path

import pytest
from ledger_helpers import History, ids
from server_helpers import running, until

from ajet_core.errors import StorageError
from ajet_core.events import EngineState
from ajet_server.capture import pruner, retention
from ajet_server.capture.calls import whole_calls
from ajet_server.capture.pruner import Pruner
from ajet_server.capture.retention import Rule
from ajet_server.episodes import janitor

pytestmark = pytest.mark.anyio


@dataclass
class Clock:
    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1e9


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pruner, "time", clock)
    return clock


async def test_one_transaction_a_step(
    past: History, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retention, "_PAGES", 100)
    monkeypatch.setattr(retention.drop_some, "__defaults__", (1,))
    for name in "ab":
        past.open(name)
        past.call(name, prompt_ids=ids(*range(60_000)), prompt_tokens=60_000)
        past.close(name, "aborted", at=0.0)
    caplog.set_level(logging.INFO, "ajet.retention")
    forgets = Pruner(past.ledger, Rule(None, 1.0, 1))
    await forgets.step()
    assert len(past.dropped) == 1
    await forgets.step()
    assert len(past.dropped) == 2
    await forgets.step()
    assert past.sql("PRAGMA freelist_count")[0][0] > 0
    assert caplog.messages == []
    for _ in range(9):
        await forgets.step()
    assert past.sql("PRAGMA freelist_count") == [(0,)]
    assert [message.split(" (")[0] for message in caplog.messages] == ["dropped what 2 calls of 2 episodes held"]
    past.episode("c", "aborted", at=0.0)
    await forgets.step()
    assert len(past.dropped) == 2, "it looks again only after a while"
    clock.now += 61
    await forgets.step()
    assert len(past.dropped) == 3


async def test_without_a_bound_it_does_nothing(past: History, clock: Clock) -> None:
    past.episode("a", "aborted", at=0.0)
    past.ledger.close()
    await Pruner(past.ledger, Rule(None, None, 1)).step()


async def test_what_the_disk_refuses_is_still_due(past: History, clock: Clock) -> None:
    past.episode("a", "aborted", at=0.0)
    past.ledger.close()
    forgets = Pruner(past.ledger, Rule(None, 1.0, 1))
    for _ in range(2):
        with pytest.raises(StorageError):
            await forgets.step()


async def test_the_janitor_of_a_server_forgets(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruner, "_EVERY_S", 0.0)
    monkeypatch.setattr(janitor, "_EVERY_S", 0.01)
    kept = {"checkpoint": {"keep": 1}, "retention": {"trained_episodes": 1}}
    async with running(tmp_path, model, **kept) as run:
        await run.reach(EngineState.ROLLING)
        names = []
        for step in (1, 2, 3):
            names.append((await run.rollout()).id)
            await run.reach(EngineState.ROLLING, step=step)
        past = History(run.server.ledger)
        await until(lambda: len(past.dropped) == 2)
        assert past.dropped == set(names[:2])
        assert await run.server.ledger.read(lambda db: whole_calls(db, names[2]))
