"""The janitor can be asked: what it expired, set aside and dropped, when, and why."""

import time
from pathlib import Path

import httpx2
import pytest
from api_helpers import serving
from server_helpers import Running, running, until

from ajet_core.errors import StorageError
from ajet_core.events import EngineState
from ajet_core.wire import JanitorAction, JanitorDeed, JanitorView
from ajet_server.capture import pruner
from ajet_server.capture.ledger import Ledger
from ajet_server.episodes import book, janitor
from ajet_server.episodes.diary import Diary

pytestmark = pytest.mark.anyio

ROLLING = EngineState.ROLLING


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(janitor, "_EVERY_S", 0.01)
    monkeypatch.setattr(pruner, "_EVERY_S", 0.0)


def _of(live: Running, deed: JanitorDeed) -> list[JanitorAction]:
    return [action for action in live.server.janitor().actions if action.deed is deed]


async def test_what_it_expired(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model, limits={"lease_s": 0.1}) as live:
        await live.reach(ROLLING)
        before = time.time()
        silent = await live.open(kind="eval")
        await until(lambda: bool(_of(live, JanitorDeed.EXPIRED)))
        (action,) = _of(live, JanitorDeed.EXPIRED)
        assert action.episode_id == silent.id
        assert before <= action.at <= time.time()
        assert action.reason == live.server.runtime.episodes.view(silent.id).reason
        view = live.server.janitor()
        assert (view.expired, view.set_aside, view.failed) == (1, 0, 0)
        assert "ajet_request_expired_episodes_total 1.0" in live.server.metrics.exposition().decode()


async def test_an_uninformative_group_is_set_aside(tmp_path: Path, model: Path) -> None:
    batch = {"policy": "informative_groups", "size": 1, "group_size": 2}
    async with running(tmp_path, model, batch=batch) as live:
        await live.reach(ROLLING)
        same = [await live.rollout(1.0) for _ in range(2)]
        await until(lambda: live.server.janitor().set_aside == 2)
        found = _of(live, JanitorDeed.SET_ASIDE)
        assert {action.episode_id for action in found} == {record.id for record in same}
        assert all("do not differ" in action.reason for action in found)


async def test_tokens_that_are_too_old_are_set_aside(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model, batch={"max_staleness": 0}, limits={"drain_timeout_s": 0.05}) as live:
        await live.reach(ROLLING)
        late = await live.open()
        await live.chat(late)
        await live.rollout()
        await live.reach(ROLLING, step=1)
        await live.finish(late)
        await until(lambda: live.server.janitor().set_aside == 1)
        (action,) = _of(live, JanitorDeed.SET_ASIDE)
        assert action.episode_id == late.id
        assert action.reason == "it holds tokens of weight version 0, and 1 is served: more than batch.max_staleness=0"


async def test_what_it_dropped(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model, retention={"days": 1e-9}) as live:
        await live.reach(ROLLING)
        await live.rollout(kind="eval")
        await until(lambda: live.server.janitor().dropped == 1)
        (action,) = _of(live, JanitorDeed.DROPPED)
        assert action.episode_id is None
        assert action.reason.startswith("1 calls of 1 episodes, ")


async def test_what_the_disk_refused(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told, and done once the disk lets it."""
    async with running(tmp_path, model, limits={"lease_s": 0.1}) as live:
        await live.reach(ROLLING)
        silent = await live.open(kind="eval")

        async def refuse(*_: object) -> None:
            raise StorageError("the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(Ledger, "write", refuse)
            await until(lambda: live.server.janitor().failed > 0)
        assert _of(live, JanitorDeed.FAILED)[0].reason == "the disk is full"
        await until(lambda: live.server.runtime.episodes.view(silent.id).status == "expired")
        await until(lambda: live.server.janitor().expired == 1)


class _Clock:
    """Time that jumps."""

    def __init__(self) -> None:
        self.wall, self.steady = 0.0, 0.0

    def time(self) -> float:
        return time.time() + self.wall

    def monotonic(self) -> float:
        return time.monotonic() + self.steady


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
async def test_a_wall_clock_that_jumps_expires_nobody(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    clock = _Clock()
    monkeypatch.setattr(book, "time", clock)
    async with running(tmp_path, model, limits={"lease_s": 60}) as live:
        await live.reach(ROLLING)
        early = await live.open(kind="eval")
        clock.wall = jump
        later = await live.open(kind="eval")
        rounds = live.server.janitor().rounds
        await until(lambda: live.server.janitor().rounds > rounds + 2)
        assert live.server.janitor().expired == 0
        clock.steady = 61
        await until(lambda: live.server.janitor().expired == 2)
        assert {action.episode_id for action in _of(live, JanitorDeed.EXPIRED)} == {early.id, later.id}


def test_over_http(tmp_path: Path, model: Path) -> None:
    with serving(tmp_path, model) as api:
        view = JanitorView.model_validate(api.http.get("/api/janitor").json())
        assert (view.expired, view.actions) == (0, [])
        later = _later(api.http, view.rounds)
        assert later.last_round_at is not None


def _later(http: httpx2.Client, rounds: int) -> JanitorView:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        view = JanitorView.model_validate(http.get("/api/janitor").json())
        if view.rounds > rounds:
            return view
    raise AssertionError("it made no round")


def test_only_the_latest_are_kept_and_all_are_counted() -> None:
    diary = Diary()
    for number in range(250):
        diary.note(JanitorDeed.EXPIRED, "silence", f"ep_{number}")
    view = diary.view()
    assert view.expired == 250
    assert [action.episode_id for action in view.actions] == [f"ep_{number}" for number in range(249, 149, -1)]
