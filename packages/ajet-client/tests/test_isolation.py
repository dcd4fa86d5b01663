import json
import logging
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ajet_client import RunReport, Swarm
from ajet_client.isolation import MARK, ProcessAgent
from ajet_client.testing import FakeServer
from ajet_client.transport import Stop
from ajet_core.errors import RequestError

AGENT = """
import ctypes, os, sys, time
from helper import SCORE

def agent(episode):
    print("to nobody")
    match episode.task:
        case "exit": os._exit(3)
        case "quit": sys.exit("bye")
        case "segfault": ctypes.string_at(0)
        case "hang": time.sleep(1000)
        case "raise": raise ValueError("not today")
        case "abort": episode.abort("too hard")
        case "none": return None
        case "nan": return float("nan")
        case "set": episode.reward(SCORE, pid=os.getpid())
        case "closed": time.sleep(1000)
        case _: return SCORE

def environment(episode):
    text = str(dict(os.environ)) + str(vars(episode._grant))
    assert os.environ["OPENAI_API_KEY"] == episode.api_key
    assert os.environ["OPENAI_BASE_URL"] == episode.base_url
    return episode.reward(1.0, has_token="tok-0" in text, control=len(episode.grant.control_key))

async def coroutine(episode):
    return SCORE
"""


def save(file: Path, text: str) -> None:
    fresh = file.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(file)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save(tmp_path / "helper.py", "SCORE = 0.5\n")
    save(tmp_path / "agent.py", AGENT)
    return tmp_path / "agent.py"


def run(swarm: Swarm, agent: object, tasks: object, **options: object) -> RunReport:
    defaults = {"isolation": "process", "progress": False, "attempts": 1, "concurrency": 2}
    return swarm.run(agent, tasks, **(defaults | options))  # type: ignore[arg-type]


def test_what_breaks_one_episode_breaks_no_other(swarm: Swarm, server: FakeServer, file: Path) -> None:
    broken = ["exit", "quit", "segfault", "hang", "raise", "abort", "none", "nan"]
    report = run(swarm, str(file), [*broken, *"abcdef"], timeout=1.5)
    errors = {str(record.task.data): record.error for record in report.records}
    assert (report.finished, report.failed) == (6, len(broken))
    assert server.rewards == [0.5] * 6
    assert errors["exit"] == "AgentFailedError: its process died: exit status 3; it wrote no errors"
    assert errors["quit"] == "AgentFailedError: SystemExit: bye"
    assert "ended by SIGSEGV" in str(errors["segfault"])
    assert "more than 1.5 s (timeout)" in str(errors["hang"])
    assert errors["raise"] == "AgentFailedError: ValueError: not today"
    assert errors["abort"] == "AgentFailedError: the agent aborted it: too hard"
    assert "returned None" in str(errors["none"])
    assert "must be finite" in str(errors["nan"])
    assert {episode.status for episode in server.episodes} == {"finished", "aborted"}


def test_a_process_serves_many_episodes_and_ends_with_the_run(swarm: Swarm, server: FakeServer, file: Path) -> None:
    report = run(swarm, str(file), ["set"] * 12, concurrency=1)
    (pid,) = {int(record.metrics["pid"]) for record in report.records}
    assert report.reward_mean == 0.5
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_process_is_replaced_after_some_episodes(swarm: Swarm, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ajet_client.isolation._EPISODES", 3)
    report = run(swarm, str(file), ["set"] * 9, concurrency=1)
    assert len({record.metrics["pid"] for record in report.records}) == 3


def test_an_agent_finds_its_episode_in_the_environment_and_no_secret(
    swarm: Swarm, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AJET_TOKEN", "tok-0")
    report = run(swarm, f"{file}:environment", ["a", "b"])
    assert report.failed == 0
    assert report.metric_means == {"has_token": 0.0, "control": 0.0}


def test_async_functions_and_imported_ones(swarm: Swarm, server: FakeServer, file: Path) -> None:
    run(swarm, f"{file}:coroutine", ["a"])
    run(swarm, json.dumps, ["a"])  # found, and no agent
    assert server.rewards == [0.5]


def test_the_traceback_is_told_once(swarm: Swarm, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        run(swarm, str(file), ["raise"], attempts=2)
    messages = [record.getMessage() for record in caplog.records if "not today" in record.getMessage()]
    assert len(messages) == 2
    assert f'File "{file}", line 12, in agent' in messages[0]


def test_an_agent_whose_episode_the_server_closed_is_ended(server: FakeServer, file: Path) -> None:
    server = FakeServer(lease_s=0.3)

    def close() -> None:
        assert server.wait_for("heartbeat", 1)
        server.close_episode(server.episodes[0].id, "drained")

    with Swarm(server.url, transport=server.transport()) as swarm:
        closing = threading.Thread(target=close)
        closing.start()
        report = run(swarm, str(file), ["closed"])
        closing.join(10)
    assert "the episode is expired already" in str(report.records[0].error)


def test_new_processes_run_new_code(
    swarm: Swarm, server: FakeServer, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def tasks() -> Iterator[str]:
        yield "a"
        yield "b"
        save(file.with_name("helper.py"), "SCORE = 0.9\n")
        yield "c"

    run(swarm, str(file), tasks(), watch=True, concurrency=1)
    assert (server.rewards[0], server.rewards[2]) == (0.5, 0.9)
    assert [record.getMessage() for record in caplog.records] == ["the agent's code changed; new processes run it"]


def test_a_broken_file_pauses_the_run_until_it_is_mended(swarm: Swarm, server: FakeServer, file: Path) -> None:
    def tasks() -> Iterator[str]:
        yield "a"
        yield "b"
        save(file.with_name("helper.py"), "SCORE = \n")
        threading.Timer(0.5, save, (file.with_name("helper.py"), "SCORE = 1.0\n")).start()
        yield from "cdef"

    report = run(swarm, str(file), tasks(), watch=True)
    assert (report.finished, report.failed, report.attempts) == (6, 0, 6)
    assert server.rewards[-1] == 1.0


def test_without_watch_a_broken_file_ends_the_run(swarm: Swarm, server: FakeServer, file: Path) -> None:
    save(file, "import os; os._exit(9)\n")
    with pytest.raises(RequestError, match="cannot be loaded: its process died: exit status 9"):
        run(swarm, str(file), ["a"])
    assert server.episodes == []


def test_such_a_process_starts_none_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, "1")
    with pytest.raises(RequestError, match="__main__"):
        ProcessAgent(save, timeout=None, watch=False)


def test_a_function_of_the_main_script_is_found(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(
        textwrap.dedent("""
            import sys
            from ajet_client import Swarm

            def agent(episode):
                return 0.25

            if __name__ == "__main__":
                with Swarm(sys.argv[1]) as swarm:
                    print(swarm.run(agent, ["a"], isolation="process", progress=False))
        """)
    )
    with FakeServer().serve() as server:
        command = [sys.executable, str(script), server.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "1 finished, 0 failed, 1 attempts, mean reward 0.25\n"


def test_closing_ends_what_runs_and_what_waits(file: Path) -> None:
    agent, stop = ProcessAgent(str(file), timeout=None, watch=False), Stop()
    agent.load(stop)
    (process,) = agent._all
    agent.close()
    assert process.has_ended
    assert agent._all == set()
