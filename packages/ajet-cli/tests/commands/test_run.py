import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ajet_cli.main import main
from ajet_client.testing import FakeServer

AGENT = """
def agent(episode):
    episode.reward(0.5, length=3)

def fails(episode):
    raise ValueError("not today")
"""


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer().serve() as server:
        yield server


@pytest.fixture
def tasks(tmp_path: Path) -> str:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text('{"name": "a"}\n{"name": "b"}\n')
    return str(tmp_path / "tasks.jsonl")


def ajet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["ajet", "run", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    captured = capsys.readouterr()
    return int(end.value.code or 0), captured.out, captured.err


def test_a_program_runs_on_every_task(
    server: FakeServer, tasks: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = """sh -c 'echo "{\\"reward\\": 0.5, \\"metrics\\": {\\"length\\": 7}}"'"""
    arguments = ("--cmd", command, "--tasks", tasks, "--repeat", "2", "--id-field", "name")
    status, out, _ = ajet(monkeypatch, capsys, server.url, *arguments)
    assert (status, out) == (0, "4 finished, 0 failed, 4 attempts, mean reward 0.5\nlength: 7\n")
    assert sorted(episode.task_id for episode in server.episodes) == ["a", "a", "b", "b"]


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_python_file_runs_on_every_task(
    isolation: str,
    server: FakeServer,
    tasks: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    agent = str(Path(tasks).with_name("agent.py"))
    arguments = (server.url, agent, "--tasks", tasks, "--kind", "eval", "--group-size", "2", "--isolation", isolation)
    status, out, _ = ajet(monkeypatch, capsys, *arguments, "--json")
    assert (status, len(out.splitlines())) == (0, 1)
    assert json.loads(out) == {
        "finished": 4,
        "failed": 0,
        "attempts": 4,
        "reward_mean": 0.5,
        "metric_means": {"length": 3.0},
        "short_groups": {},
        "stopped": None,
    }
    assert {episode.kind for episode in server.episodes} == {"eval"}


def test_nothing_finished_is_status_1_and_says_why(
    server: FakeServer, tasks: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = f"{Path(tasks).with_name('agent.py')}:fails"
    status, out, _ = ajet(monkeypatch, capsys, server.url, agent, "--tasks", tasks, "--attempts", "2", "--json")
    assert (status, json.loads(out)["failed"], json.loads(out)["attempts"]) == (1, 2, 4)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, "give either AGENT, a Python file, or --cmd"),
        (["agent.py", "--cmd", "true"], 2, "give either AGENT, a Python file, or --cmd"),
        (["--cmd", "no-such-program"], 1, "there is no program 'no-such-program'"),
        (["--cmd", "true", "--watch"], 1, "watch: each episode starts the program anew"),
        (["--cmd", "true", "--isolation", "process"], 1, "isolation: this agent is a process of its own"),
        (["no-such.py"], 1, "there is no file 'no-such.py'"),
        (["--cmd", "true", "--timeout", "0"], 2, "0"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_opened(
    arguments: Sequence[str],
    status: int,
    message: str,
    server: FakeServer,
    tasks: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found, _, errors = ajet(monkeypatch, capsys, server.url, *arguments, "--tasks", tasks)
    assert found == status
    assert message in errors
    assert server.requests == []


def start(server: FakeServer, tasks: str, command: str) -> subprocess.Popen[str]:
    arguments = [server.url, "--cmd", command, "--tasks", tasks, "--repeat", "0", "--concurrency", "3", "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "ajet_cli", "run", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def pids(folder: Path, count: int) -> list[int]:
    """Waits until so many programs wrote their number."""
    while len(found := [file for file in folder.glob("*.pid") if file.read_text().endswith("\n")]) < count:
        os.sched_yield()
    return [int(file.read_text()) for file in found]


def until_gone(pid: int) -> None:
    """Waits until a process is gone, or a zombie that its new parent has not looked at."""
    while Path(f"/proc/{pid}").exists():
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return
        os.sched_yield()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_aborts_what_is_open_and_ends_the_programs(
    number: signal.Signals, status: int, server: FakeServer, tasks: str, tmp_path: Path
) -> None:
    process = start(server, tasks, f"sh -c 'echo $$ > {tmp_path}/$$.pid; sleep 1000'")
    with process:
        children = pids(tmp_path, 3)
        process.send_signal(number)
        out, errors = process.communicate(timeout=60)
    assert process.returncode == status, errors
    assert json.loads(out)["stopped"] == number.name
    assert "Traceback" not in errors
    assert {episode.status for episode in server.episodes} == {"aborted"}
    for episode in server.episodes:
        assert f"the run was stopped: InterruptedRunError: {number.name}" in str(episode.reason)
    for child in children:
        until_gone(child)


def test_the_second_signal_ends_it_at_once(server: FakeServer, tasks: str, tmp_path: Path) -> None:
    deaf = f"sh -c 'trap \"\" TERM; echo $$ > {tmp_path}/$$.pid; while true; do sleep 0.1; done'"
    server.hold("abort", times=99)
    with start(server, tasks, deaf) as process:
        children = pids(tmp_path, 3)
        process.send_signal(signal.SIGINT)
        assert server.wait_for("abort", 1)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), errors
    for child in children:
        until_gone(child)
