"""Contract 2: what was acknowledged is on disk; what was not, is not; a file that is no good ledger is left alone."""

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from ajet_core.errors import ConflictError, StorageError
from ajet_server.capture.ledger import Ledger, to_the_end
from ajet_server.capture.schema import MIGRATIONS
from ajet_server.capture.steps import get_meta, set_meta
from ajet_server.capture.writes import Write

pytestmark = pytest.mark.anyio


def count(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT count(*) FROM meta").fetchone()[0])


def fill(file: Path, rows: int = 200) -> None:
    """A ledger of several pages, closed in order."""
    with Ledger(file) as ledger:
        ledger.write_now(lambda db: [set_meta(db, f"key{n}", "x" * 500) for n in range(rows)])


def state(folder: Path) -> dict[str, bytes]:
    """Every file but the shared memory of readers and an empty log, which reading alone may make."""
    files = {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith("-shm")}
    return {name: content for name, content in files.items() if content}


async def test_a_write_returns_what_its_statement_did(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        await ledger.write(lambda db: set_meta(db, "a", "1"))
        assert await ledger.read(lambda db: get_meta(db, "a")) == "1"
        assert ledger.read_now(lambda db: get_meta(db, "b")) is None


_ACKNOWLEDGER = """
import asyncio, sys
from pathlib import Path
from ajet_server.capture.ledger import Ledger
from ajet_server.capture.steps import set_meta

async def main():
    ledger = Ledger(Path(sys.argv[1]))
    number = 0
    while True:
        async def one(number):
            await ledger.write(lambda db: set_meta(db, str(number), "x"))
            print(number, flush=True)
        await asyncio.gather(*(one(number + n) for n in range(5)))
        number += 5

asyncio.run(main())
"""


def test_acknowledged_writes_survive_a_kill(tmp_path: Path) -> None:
    file = tmp_path / "l"
    command = [sys.executable, "-c", _ACKNOWLEDGER, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline()) for _ in range(23)]
        process.send_signal(signal.SIGKILL)
        acknowledged += [int(line) for line in process.stdout.read().splitlines()]
    with Ledger(file) as ledger:
        kept = ledger.read_now(lambda db: {int(row["key"]) for row in db.execute("SELECT key FROM meta")})
        assert set(acknowledged) <= kept
        assert len(kept) <= len(acknowledged) + 5, "only what was in flight may be there besides"


async def test_one_statement_that_fails_is_rolled_back_alone(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:

        def write(db: sqlite3.Connection, number: int) -> int:
            set_meta(db, f"key{number}", "x")
            if number % 3 == 0:
                raise ConflictError(f"number {number}")
            if number % 3 == 1:
                db.execute("INSERT INTO meta (key, value) VALUES ('key0', NULL)")
            return number

        jobs = [ledger.write(lambda db, n=number: write(db, n)) for number in range(300)]
        results = await asyncio.gather(*jobs, return_exceptions=True)
        for number, result in enumerate(results):
            expected = (ConflictError, sqlite3.IntegrityError, int)[number % 3]
            assert isinstance(result, expected)
        kept = ledger.read_now(lambda db: {row["key"] for row in db.execute("SELECT key FROM meta")})
        assert kept == {f"key{number}" for number in range(2, 300, 3)}


async def test_a_mistake_in_a_statement_does_not_end_the_writer(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        with pytest.raises(ZeroDivisionError):
            await ledger.write(lambda _: 1 // 0)
        with pytest.raises(UnicodeEncodeError):
            await ledger.write(lambda db: set_meta(db, "half", "\ud800"))
        await ledger.write(lambda db: set_meta(db, "a", "1"))
        assert ledger.read_now(count) == 1


async def test_concurrent_writes_share_a_commit(tmp_path: Path) -> None:
    commits = 0
    with Ledger(tmp_path / "l") as ledger:
        gate = threading.Event()

        def trace(sql: str) -> None:
            nonlocal commits
            commits += sql == "COMMIT"

        ledger._writer.set_trace_callback(trace)
        first = asyncio.create_task(ledger.write(lambda _: gate.wait(10)))
        others = [asyncio.create_task(ledger.write(lambda db, n=n: set_meta(db, str(n), "x"))) for n in range(500)]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(first, *others)
        assert ledger.read_now(count) == 500
        assert commits <= 5


async def test_the_queue_is_bounded(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        gate = threading.Event()
        jobs = [asyncio.create_task(ledger.write(lambda _: gate.wait(10)))]
        jobs += [asyncio.create_task(ledger.write(lambda db, n=n: set_meta(db, str(n), "x"))) for n in range(3000)]
        for _ in range(3):
            await asyncio.sleep(0)
        assert ledger._queue.qsize() <= 1024
        gate.set()
        await asyncio.gather(*jobs)
        assert ledger.read_now(count) == 3000


async def test_a_cancelled_writer_leaves_the_others_alone(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        gate = threading.Event()
        first = asyncio.create_task(ledger.write(lambda _: gate.wait(10)))
        second = asyncio.create_task(ledger.write(lambda db: set_meta(db, "a", "1")))
        await asyncio.sleep(0)
        first.cancel()
        gate.set()
        await second
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_what_a_cancelled_writer_gave_is_written(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        gate = threading.Event()
        blocker = asyncio.create_task(ledger.write(lambda _: gate.wait(10)))
        writer = asyncio.create_task(ledger.write(lambda db: set_meta(db, "a", "1")))
        await asyncio.sleep(0)
        writer.cancel()
        await asyncio.wait({writer})
        assert ledger.read_now(count) == 0
        gate.set()
        await blocker
        await ledger.write(lambda db: set_meta(db, "b", "1"))
        assert ledger.read_now(count) == 2


def test_a_loop_that_ended_meanwhile_holds_nothing_up(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        gate, left = threading.Event(), Future[Any]()
        ledger._enqueue(Write(lambda _: gate.wait(10), left))
        loop = asyncio.new_event_loop()
        ledger._enqueue(Write(lambda db: set_meta(db, "a", "1"), loop.create_future()))
        loop.close()
        gate.set()
        ledger.write_now(lambda db: set_meta(db, "b", "1"))
        assert ledger.read_now(count) == 2


async def test_one_waking_for_all_of_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger(tmp_path / "l") as ledger:
        gate, loop, woken = threading.Event(), asyncio.get_running_loop(), list[Any]()
        blocker = asyncio.create_task(ledger.write(lambda _: gate.wait(10)))
        await asyncio.sleep(0)
        wake = loop.call_soon_threadsafe
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *args: woken.append(args) or wake(*args))
        writers = [asyncio.create_task(ledger.write(lambda db, n=n: set_meta(db, str(n), "x"))) for n in range(50)]
        while ledger._queue.qsize() < 50:
            await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(blocker, *writers)
        assert len(woken) <= 2
        assert ledger.read_now(count) == 50


async def test_to_the_end_finishes_before_the_cancellation() -> None:
    gate, done = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await gate.wait()
        done.set()

    task = asyncio.create_task(to_the_end(work()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done.is_set()


async def test_what_mirrors_a_write_is_done_before_a_cancellation(tmp_path: Path) -> None:
    gate, mirrored = threading.Event(), list[int]()

    def statement(db: sqlite3.Connection) -> int:
        gate.wait(10)
        return count(db)

    with Ledger(tmp_path / "l") as ledger:
        task = asyncio.create_task(ledger.write(statement, mirrored.append))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert mirrored == [0]


async def test_a_write_that_is_settled_as_its_caller_is_cancelled_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, mirrored = asyncio.get_running_loop(), list[object]()
    wake = loop.call_soon_threadsafe

    def cancelled_first(*args: Any) -> Any:
        wake(task.cancel)  # the caller resumes only after the write was settled
        return wake(*args)

    with Ledger(tmp_path / "l") as ledger:
        monkeypatch.setattr(loop, "call_soon_threadsafe", cancelled_first)
        task = asyncio.create_task(ledger.write(count, mirrored.append))
        done, _ = await asyncio.wait({task}, timeout=10)
        assert done
        assert task.cancelled()
        assert mirrored == [0]


async def test_nothing_that_a_write_holds_is_held_after_it(tmp_path: Path) -> None:
    class Held:
        def __call__(self, _: object) -> None:
            """Nothing."""

    with Ledger(tmp_path / "l") as ledger:
        held = Held()
        gone = weakref.ref(held)
        await ledger.write(count, held)
        del held
        deadline = time.monotonic() + 10
        while gone() is not None and time.monotonic() < deadline:  # the writer's thread may not wait again yet
            await asyncio.sleep(0.001)
        assert gone() is None


async def test_nothing_mirrors_a_write_that_failed(tmp_path: Path) -> None:
    mirrored = list[object]()
    with Ledger(tmp_path / "l") as ledger, pytest.raises(sqlite3.IntegrityError):
        await ledger.write(lambda db: db.execute("INSERT INTO meta VALUES ('a', NULL)"), mirrored.append)
    assert mirrored == []


async def test_a_mirror_that_fails_stops_no_other_write(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        bad = ledger.write(lambda db: set_meta(db, "a", "1"), lambda _: 1 / 0)
        good = ledger.write(lambda db: set_meta(db, "b", "1"))
        results = await asyncio.gather(bad, good, return_exceptions=True)
        assert isinstance(results[0], ZeroDivisionError)
        assert results[1] is None
        assert ledger.read_now(count) == 2


async def test_a_full_disk(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        await ledger.write(lambda db: set_meta(db, "before", "x"))
        limit = ledger._writer.execute("PRAGMA page_count").fetchone()[0] + 1
        ledger._writer.execute(f"PRAGMA max_page_count = {limit}")
        with pytest.raises(StorageError, match="nothing was recorded"):
            await ledger.write(lambda db: set_meta(db, "big", "x" * 100_000))
        assert ledger.read_now(count) == 1
        ledger._writer.execute("PRAGMA max_page_count = 1000000")
        await ledger.write(lambda db: set_meta(db, "big", "x" * 100_000))
        assert ledger.read_now(count) == 2


async def test_after_the_close(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l")
    ledger.close()
    ledger.close()
    with pytest.raises(StorageError, match="closed"):
        await ledger.write(lambda db: set_meta(db, "a", "1"))
    with pytest.raises(StorageError, match="could not be read"):
        await ledger.read(count)


def test_what_waits_is_written_before_the_close(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l")
    gate = threading.Event()
    blocker, waiting = Future[Any](), [Future[Any]() for _ in range(600)]
    ledger._enqueue(Write(lambda _: gate.wait(10), blocker))
    for n, future in enumerate(waiting):
        ledger._enqueue(Write(lambda db, n=n: set_meta(db, str(n), "x"), future))
    closer = threading.Thread(target=ledger.close)
    closer.start()
    gate.set()
    closer.join(10)
    assert blocker.done()
    assert all(future.done() for future in waiting)
    with Ledger(tmp_path / "l") as again:
        assert again.read_now(count) == 600


@pytest.mark.parametrize("damage", ["noise", "header", "middle", "cut", "text"])
def test_a_damaged_file_is_refused_and_left_as_it_is(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "ledger.sqlite"
    fill(file)
    whole = file.read_bytes()
    broken = {
        "noise": bytes(range(256)) * 64,
        "header": b"\0" * 100 + whole[100:],
        "middle": whole[:4096] + b"\xff" * 40_000 + whole[44_096:],
        "cut": whole[: len(whole) // 2 - 100],
        "text": b"this is no database\n",
    }[damage]
    file.write_bytes(broken)
    before = state(tmp_path)
    with pytest.raises(StorageError, match=r"it was not changed|cannot be used"):
        Ledger(file)
    assert state(tmp_path) == before


def test_a_ledger_of_a_newer_ajet_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "ledger.sqlite"
    fill(file)
    with sqlite3.connect(file) as db:
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    db.close()
    before = state(tmp_path)
    with pytest.raises(StorageError, match="newer ajet"):
        Ledger(file)
    assert state(tmp_path) == before


@pytest.mark.parametrize("version", [0, 1])
def test_a_database_of_somebody_else_is_refused_and_left_as_it_is(tmp_path: Path, version: int) -> None:
    file = tmp_path / "ledger.sqlite"
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE notes (text TEXT)")
        db.execute(f"PRAGMA user_version = {version}")
    db.close()
    before = state(tmp_path)
    with pytest.raises(StorageError, match="not a ledger of ajet"):
        Ledger(file)
    assert state(tmp_path) == before


def test_a_folder_in_its_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").mkdir()
    with pytest.raises(StorageError, match=r"ledger\.sqlite cannot be used"):
        Ledger(tmp_path / "ledger.sqlite")


def test_an_empty_file_becomes_a_ledger(tmp_path: Path) -> None:
    (tmp_path / "l").touch()
    fill(tmp_path / "l", rows=1)


def test_a_crash_between_file_and_tables_is_harmless(tmp_path: Path) -> None:
    file = tmp_path / "l"
    code = (
        "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "db.execute('PRAGMA journal_mode = WAL'); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(file)], check=False)
    fill(file, rows=1)
    with Ledger(file) as ledger:
        assert ledger.read_now(count) == 1


def test_events_are_json_with_their_ids(tmp_path: Path) -> None:
    from ajet_server.capture.steps import events_after, insert_event

    with Ledger(tmp_path / "l") as ledger:
        for number in range(5):
            ledger.write_now(lambda db, n=number: insert_event(db, "x", 0.0, json.dumps({"n": n})))
        page = ledger.read_now(lambda db: events_after(db, 2, 2))
        assert [(number, json.loads(data)) for number, data in page] == [(3, {"n": 2, "id": 3}), (4, {"n": 3, "id": 4})]
