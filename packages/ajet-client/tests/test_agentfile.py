import itertools
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ajet_client import Swarm
from ajet_client.agentfile import FileAgent
from ajet_client.source import BrokenAgentError
from ajet_client.testing import FakeServer
from ajet_client.transport import Stop, StoppedError
from ajet_core.errors import RequestError

HALF = "def agent(episode): return 0.5\n"
BROKEN = "def agent(episode) return 0.75\n"
WHOLE = "def agent(episode): return 1.0\n"


def save(file: Path, text: str) -> None:
    fresh = file.parent.with_name(f"{file.parent.name}.new")  # what is new in the folder is watched, too
    fresh.write_text(text)
    fresh.replace(file)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save(tmp_path / "agent.py", HALF)
    return tmp_path / "agent.py"


def test_each_episode_runs_the_present_code(swarm: Swarm, server: FakeServer, file: Path) -> None:
    def tasks() -> Iterator[int]:
        yield 0
        yield 1
        save(file, WHOLE)
        yield 2

    swarm.run(str(file), tasks(), watch=True, concurrency=1, progress=False)
    assert server.rewards[0] == 0.5
    assert server.rewards[2] == 1.0


def test_without_watch_the_code_stays(swarm: Swarm, server: FakeServer, file: Path) -> None:
    def tasks() -> Iterator[int]:
        yield 0
        yield 1
        save(file, WHOLE)
        yield 2

    swarm.run(str(file), tasks(), concurrency=1, progress=False)
    assert server.rewards == [0.5, 0.5, 0.5]
    swarm.run(str(file), [3], progress=False)
    assert server.rewards[-1] == 1.0


def test_an_async_agent_runs_as_well(swarm: Swarm, server: FakeServer, file: Path) -> None:
    save(file, "async def play(episode): return 0.25\n")
    swarm.run(f"{file}:play", ["a"], progress=False)
    assert server.rewards == [0.25]


def test_a_broken_file_pauses_the_run_until_it_is_mended(
    swarm: Swarm, server: FakeServer, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "no episode is opened until this is mended" in record.getMessage():
                told.set()

    def mend() -> None:
        assert told.wait(20)
        opened.append(server.requests.count("open"))
        save(file, WHOLE)

    def tasks() -> Iterator[int]:
        yield from range(2)
        save(file, BROKEN)
        mending.start()
        yield from range(2, 6)

    opened: list[int] = []
    mending = threading.Thread(target=mend)
    listener = Listener()
    logging.getLogger("ajet_client").addHandler(listener)
    try:
        report = swarm.run(str(file), tasks(), watch=True, concurrency=2, attempts=1, progress=False)
    finally:
        logging.getLogger("ajet_client").removeHandler(listener)
        mending.join(20)
    assert (report.finished, report.failed) == (6, 0)
    assert set(server.rewards[-2:]) == {1.0}
    assert opened[0] <= 4
    messages = [record.getMessage() for record in caplog.records]
    assert sum("SyntaxError" in message for message in messages) == 1  # once for all threads
    assert sum("loaded anew" in message for message in messages) == 1


def test_an_episode_that_was_opened_before_the_code_broke_is_no_attempt(
    swarm: Swarm, server: FakeServer, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, wait_until_ready = itertools.count(), FileAgent.wait_until_ready

    def edited(agent: FileAgent, stop: Stop) -> None:
        first = next(calls) == 0
        if not first:
            save(file, WHOLE)
        wait_until_ready(agent, stop)
        if first:
            save(file, BROKEN)

    monkeypatch.setattr(FileAgent, "wait_until_ready", edited)
    report = swarm.run(str(file), ["a"], watch=True, attempts=1, progress=False)
    assert [episode.status for episode in server.episodes] == ["aborted", "finished"]
    assert "SyntaxError" in str(server.episodes[0].reason)
    assert (report.finished, report.failed, report.attempts, server.rewards) == (1, 0, 1, [1.0])


def test_without_watch_a_broken_file_ends_the_run(swarm: Swarm, server: FakeServer, file: Path) -> None:
    save(file, BROKEN)
    with pytest.raises(RequestError, match="SyntaxError") as caught:
        swarm.run(str(file), ["a"], progress=False)
    assert caught.value.field == "agent"
    assert server.episodes == []


def test_a_broken_file_is_loaded_once_for_each_change(file: Path, tmp_path: Path) -> None:
    count = tmp_path / "count.txt"
    save(file, f"with open({str(count)!r}, 'a') as count: count.write('x')\nraise ValueError\n")
    agent = FileAgent(str(file), watch=True)
    count.touch()
    for _ in range(3):
        with pytest.raises(BrokenAgentError):
            agent.load(Stop())
    assert count.read_text() == "x"
    agent.close()


def test_a_stop_ends_the_wait_for_mending(file: Path) -> None:
    save(file, BROKEN)
    agent, stop = FileAgent(str(file), watch=True), Stop()
    timer = threading.Timer(0.05, stop.set)
    timer.start()
    with pytest.raises(StoppedError):
        agent.wait_until_ready(stop)
    timer.join()
