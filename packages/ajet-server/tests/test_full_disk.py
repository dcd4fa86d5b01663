"""A disk without room: what cannot be written is not acknowledged, nothing ends, and it goes on once there is room."""

import asyncio
import contextlib
import errno
import itertools
import os
import resource
import sqlite3
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from server_helpers import WorkerFolder, listening, make_job, running, until

from ajet_core.errors import DiskFullError, StorageError, UnavailableError
from ajet_core.events import EngineState
from ajet_core.wire import FinishEpisode
from ajet_server import conductor as conductor_module
from ajet_server.capture.check import check
from ajet_server.capture.ledger import Ledger
from ajet_server.capture.reading import look
from ajet_server.capture.steps import get_meta, set_meta
from ajet_server.observe.bus import EventLog
from ajet_server.settings import ServerSettings
from ajet_server.train.checkpoint import RETRY_S, write_checkpoint
from ajet_server.train.state import os_errors
from ajet_server.wiring import Server

pytestmark = pytest.mark.anyio
T = TypeVar("T")
ROLLING = EngineState.ROLLING
MANY = {f"{number:060}": 1.0 for number in range(100)}
"""More than fits the pages that are there."""


async def limit_pages(ledger: Ledger, more: int) -> None:
    def write(db: Any) -> None:
        count = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {count + more}")

    await ledger.write(write)


async def test_a_finish_without_room_is_not_acknowledged_and_taken_later(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model) as live:
        await live.reach(ROLLING)
        record = await live.open()
        await live.chat(record)
        episodes, body = live.server.runtime.episodes, FinishEpisode(reward=1.0, metrics=MANY)
        await limit_pages(live.server.ledger, 0)
        with pytest.raises(DiskFullError, match=r"the disk is full: the ledger .*nothing was recorded") as caught:
            await episodes.finish(record.id, body)
        assert caught.value.retry_after_s
        assert episodes.view(record.id).status == "open"
        assert live.state is ROLLING
        await limit_pages(live.server.ledger, 10_000)
        assert (await episodes.finish(record.id, body)).status == "finished"
        await live.reach(ROLLING, step=1)


def test_clients_are_told_to_try_again(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ServerSettings("127.0.0.1", 0, tmp_path / "data", make_job(model))
    server = Server(settings, WorkerFolder(tmp_path / "worker").command)

    async def full(*_: object) -> None:
        raise DiskFullError("the disk is full", retry_after_s=5.0)

    with listening(server) as url, httpx2.Client(base_url=url) as http:
        monkeypatch.setattr(server.ledger, "write", full)
        monkeypatch.setattr(server.runtime.conductor, "admit", lambda kind: None)
        answer = http.post("/api/episodes", json={"request_id": "r" * 8, "task": "t"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert answer.json()["error"]["code"] == "disk_full"
        monkeypatch.undo()


async def test_the_loop_waits_for_room_and_goes_on(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conductor_module, "_ROOM_EVERY_S", 0.02)
    full, emit = {"is": False}, EventLog.emit

    async def emit_if_there_is_room(self: EventLog, event: Any, *more: Any) -> None:
        if full["is"] and event.type in ("state_changed", "step_finished"):
            raise DiskFullError("no space left")
        await emit(self, event, *more)

    monkeypatch.setattr(EventLog, "emit", emit_if_there_is_room)
    async with running(tmp_path, model) as live:
        await live.reach(ROLLING)
        full["is"] = True
        record = await live.rollout()
        await until(lambda: live.server.status().cause == "waiting for room on the disk: no space left")
        assert live.state is EngineState.BOOTING
        full["is"] = False
        await live.reach(ROLLING, step=1)
        assert [entry["episodes"] for entry in live.worker.log("checkpoint")] == [[record.id]]
        assert live.server.status().worker_restarts == 0, "a full disk is no failure of the worker"


@pytest.mark.parametrize("number", range(26))
async def test_no_single_write_that_finds_no_room_costs_anything(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(conductor_module, "_ROOM_EVERY_S", 0.02)
    write, left = Ledger.write, itertools.count(number, -1)

    def refused(statement: Any) -> Any:
        def run(db: sqlite3.Connection) -> None:
            statement(db)
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error

        return run

    async def write_all_but_one(self: Ledger, statement: Any, then: Any = None) -> Any:
        return await write(self, refused(statement) if next(left) == 0 else statement, then)

    monkeypatch.setattr(Ledger, "write", write_all_but_one)
    how = {"during_update": "drain" if number % 2 else "continue"}
    async with running(tmp_path, model, batch={"max_staleness": 1}, engine=how) as live:
        for step in (1, 2):
            name = f"request {step}"
            record = await _at_last(lambda name=name: live.open(request_id=name))
            await _at_last(lambda record=record: live.chat(record))
            await _at_last(lambda record=record: live.finish(record))
            await live.reach(ROLLING, step=step)
        assert next(left) < 0
        assert [event["report"]["step"] for event in live.events("step_finished")] == [1, 2]
        runtime = live.server.runtime
        assert (runtime.episodes.open_count, runtime.pool.rows, runtime.pool.groups) == (0, [], [])
    assert look(tmp_path / "data/ledger.sqlite", lambda db: list(check(db))) == []


async def _at_last(attempt: Callable[[], Awaitable[T]]) -> T:
    """What a client does: it tries again."""
    while True:
        with contextlib.suppress(UnavailableError, DiskFullError):
            return await attempt()
        await asyncio.sleep(0.005)


async def test_a_server_that_waits_for_room_can_be_stopped(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model) as live:
        await live.reach(ROLLING)
        live.worker.fault("update", "full")
        await live.rollout()
        await until(lambda: "waiting for room" in live.server.status().cause)
        await live.server.stop("enough")
        assert live.state is EngineState.OFFLINE


async def test_a_checkpoint_without_room_is_named_and_its_step_done_again(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conductor_module, "_ROOM_EVERY_S", 0.05)
    async with running(tmp_path, model, limits={"max_worker_restarts": 0}) as live:
        await live.reach(ROLLING)
        live.worker.fault("update", "full")
        record = await live.rollout()
        await until(lambda: live.server.status().cause.endswith("cannot write the checkpoint: no space"))
        await live.reach(ROLLING, step=1)
        asked = live.worker.log("update")
        assert [entry["batch_id"] for entry in asked] == [asked[0]["batch_id"]] * 2
        assert [entry["episodes"] for entry in live.worker.log("checkpoint")] == [[record.id]]


@pytest.fixture
def small_files() -> Iterator[None]:
    """Files may have 64 kB, which looks like a full disk to whoever writes more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_tensors_that_do_not_fit_are_a_full_disk(tmp_path: Path, small_files: None) -> None:
    def write(folder: Path) -> None:
        with os_errors():
            save_file({"weights": torch.zeros(100_000)}, folder / "weights.safetensors")

    with pytest.raises(DiskFullError, match=r"cannot write the checkpoint .*step-000001") as caught:
        write_checkpoint(tmp_path, 1, write, lambda _: pytest.fail("there is no checkpoint to describe"))
    assert caught.value.retry_after_s == RETRY_S
    assert not list(tmp_path.iterdir())


def test_only_what_the_system_refused_is_the_systems(tmp_path: Path) -> None:
    with pytest.raises(SafetensorError), os_errors():
        raise SafetensorError("the header is wrong")
    with pytest.raises(OSError, match="No space") as caught, os_errors():
        raise SafetensorError(f"I/O error: No space left on device (os error {errno.ENOSPC})")
    assert caught.value.errno == errno.ENOSPC


def test_a_disk_that_refuses_for_another_reason_is_not_full(tmp_path: Path) -> None:
    def write(_: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with pytest.raises(StorageError, match="Read-only") as caught:
        write_checkpoint(tmp_path, 1, write, lambda _: pytest.fail("there is no checkpoint to describe"))
    assert not isinstance(caught.value, DiskFullError)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to mount")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def _fill_up(ballast: Path) -> None:
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def test_a_ledger_on_a_disk_that_is_really_full(small_disk: Path) -> None:
    with Ledger(small_disk / "l") as ledger:
        ledger.write_now(lambda db: set_meta(db, "first", "1"))
        ballast = small_disk / "ballast"
        _fill_up(ballast)
        for _ in range(3):
            with pytest.raises(DiskFullError):
                ledger.write_now(lambda db: set_meta(db, "second", "2" * 100_000))
        assert ledger.read_now(lambda db: get_meta(db, "second")) is None
        ballast.unlink()
        ledger.write_now(lambda db: set_meta(db, "second", "2" * 100_000))
    with Ledger(small_disk / "l") as ledger:
        assert ledger.read_now(lambda db: get_meta(db, "first")) == "1"
        assert ledger.read_now(lambda db: get_meta(db, "second")) == "2" * 100_000
