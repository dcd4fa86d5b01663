import os
import shlex
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ajet_client import CommandAgent, RunReport, Swarm
from ajet_client.testing import FakeServer
from ajet_core.errors import RequestError


@pytest.fixture
def live() -> Iterator[FakeServer]:
    with FakeServer(reply=lambda messages: "It is 42.").serve() as server:
        yield server


def python(code: str, **options: float | Path) -> CommandAgent:
    return CommandAgent([sys.executable, "-c", code], **options)  # type: ignore[arg-type]


def run(swarm: Swarm, agent: CommandAgent, tasks: object, **options: object) -> RunReport:
    return swarm.run(agent, tasks, **({"progress": False, "attempts": 1} | options))  # type: ignore[arg-type]


def error_of(report: RunReport) -> str:
    (record,) = report.records
    assert record.reward is None
    return str(record.error)


def test_a_program_plays_an_episode_over_http(live: FakeServer) -> None:
    code = """
import json, os, sys, urllib.request
task = json.loads(sys.stdin.readline())
assert sys.stdin.read() == "" and task == json.loads(os.environ["AJET_TASK"])
body = {"model": os.environ["AJET_MODEL"], "messages": [{"role": "user", "content": task["question"]}]}
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
    text = json.load(answer)["choices"][0]["message"]["content"]
print("thinking")
print(json.dumps({"reward": float("42" in text), "metrics": {"length": len(text)}}))
print()
"""
    with Swarm(live.url) as swarm:
        report = run(swarm, python(code), [{"question": "6 * 7?"}, {"question": "84 / 2?"}])
    assert live.rewards == [1.0, 1.0]
    assert report.metric_means == {"length": 9.0}
    assert {episode.calls[0]["messages"][0]["content"] for episode in live.episodes} == {"6 * 7?", "84 / 2?"}


def test_a_posted_reward_counts_whatever_is_printed(swarm: Swarm, server: FakeServer) -> None:
    code = """
import os, urllib.request
urllib.request.urlopen(os.environ["AJET_REWARD_URL"], data=b'{"reward": 0.25, "metrics": {"turns": 3}}').read()
print("done")
"""
    report = run(swarm, python(code), ["a"])
    assert (server.rewards, report.metric_means) == ([0.25], {"turns": 3.0})


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import sys; print(1.0); sys.exit('no luck')", "exit status 1; its errors end: no luck"),
        ("import os; print(1.0, flush=True); os.kill(os.getpid(), 11)", "ended by SIGSEGV; it wrote no errors"),
        ("", "no reward: it printed nothing"),
        ("print(1.0); print('done')", "the last line that it printed is 'done'"),
        ("print('nan')", "the last line that it printed is 'nan'"),
        ("print('1e400')", "reward must be finite"),
    ],
)
def test_a_failure_is_told_and_is_no_zero(swarm: Swarm, server: FakeServer, code: str, error: str) -> None:
    report = run(swarm, python(code), ["a"])
    assert error in error_of(report)
    assert error in str(server.episodes[0].reason)
    assert (server.rewards, server.episodes[0].status) == ([], "aborted")


def test_a_posted_reward_of_a_program_that_failed_does_not_count(swarm: Swarm, server: FakeServer) -> None:
    code = "import os, urllib.request as u; u.urlopen(os.environ['AJET_REWARD_URL'], data=b'1'); os._exit(2)"
    assert "exit status 2" in error_of(run(swarm, python(code), ["a"]))
    assert server.rewards == []


def test_the_end_of_long_errors_is_quoted(swarm: Swarm) -> None:
    error = error_of(run(swarm, python("import sys; sys.exit('x' * 100_000 + 'the cause')"), ["a"]))
    assert error.endswith("xthe cause")
    assert len(error) < 1200


def test_a_program_that_takes_too_long_is_ended_with_its_children(swarm: Swarm, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = f"""
import os, subprocess, time
child = subprocess.Popen(["sleep", "1000"])
with open({str(pids)!r}, "w") as file: file.write(f"{{os.getpid()}} {{child.pid}}")
time.sleep(1000)
"""
    error = error_of(run(swarm, python(code, timeout=1.5), ["a"]))
    assert "it took more than 1.5 s (timeout) and was ended" in error
    for pid in map(int, pids.read_text().split()):
        _until_gone(pid)


def test_a_program_whose_episode_the_server_closed_is_ended() -> None:
    server = FakeServer(lease_s=0.3)

    def close() -> None:
        assert server.wait_for("heartbeat", 1)
        server.close_episode(server.episodes[0].id, "drained")

    with Swarm(server.url, transport=server.transport()) as swarm:
        closing = threading.Thread(target=close)
        closing.start()
        error = error_of(run(swarm, CommandAgent("sleep 1000"), ["a"]))
        closing.join(10)
    assert "the episode is expired already" in error


def test_a_stopped_run_ends_its_programs(swarm: Swarm, server: FakeServer, tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    def tasks() -> Iterator[str]:
        yield "a"
        while not (pids.exists() and pids.read_text()):
            os.sched_yield()
        raise LookupError("no more tasks")

    code = f"import os, time; open({str(pids)!r}, 'w').write(str(os.getpid())); time.sleep(1000)"
    with pytest.raises(LookupError):
        run(swarm, CommandAgent(["sh", "-c", f"{shlex.join([sys.executable, '-c', code])}; true"]), tasks())
    _until_gone(int(pids.read_text()))
    assert "the run was stopped: LookupError: no more tasks" in str(server.episodes[0].reason)


def test_an_agent_serves_several_runs(swarm: Swarm, server: FakeServer, tmp_path: Path) -> None:
    agent = CommandAgent("cat reward.txt", cwd=tmp_path)
    (tmp_path / "reward.txt").write_text("0.5")
    run(swarm, agent, ["a"])
    (tmp_path / "reward.txt").write_text("0.75")
    run(swarm, agent, ["a"])
    assert server.rewards == [0.5, 0.75]


def test_a_task_of_any_size_arrives(swarm: Swarm, server: FakeServer) -> None:
    run(swarm, python("import json, sys; print(len(json.loads(sys.stdin.readline())))"), ["x" * 300_000])
    assert server.rewards == [300_000.0]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "it is empty"),
        ([], "it is empty"),
        ("echo 'a", "No closing quotation"),
        ("no-such-program --flag", "there is no program 'no-such-program'"),
        ("./no-such-program", "there is no program './no-such-program'"),
    ],
)
def test_a_command_that_cannot_be_is_refused_at_once(command: str | list[str], message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        CommandAgent(command)
    assert caught.value.field == "command"


def test_a_program_is_relative_to_its_working_directory(swarm: Swarm, server: FakeServer, tmp_path: Path) -> None:
    program = tmp_path / "agent.sh"
    program.write_text("#!/bin/sh\necho 0.5\n")
    program.chmod(0o755)
    run(swarm, CommandAgent("./agent.sh", cwd=tmp_path), ["a"])
    assert server.rewards == [0.5]


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan")])
def test_a_timeout_is_more_than_nothing(timeout: float) -> None:
    with pytest.raises(RequestError, match="timeout must be more than 0"):
        CommandAgent("true", timeout=timeout)


def test_the_task_is_one_line_of_json(swarm: Swarm, server: FakeServer) -> None:
    task = {"text": "two\nlines", "n": [1, None]}
    code = f"import json, sys; (line,) = sys.stdin.readlines(); print(int(json.loads(line) == {task}))"
    run(swarm, python(code), [task])
    assert server.rewards == [1.0]


def _until_gone(pid: int) -> None:
    """Waits until a process is gone, or a zombie that its new parent has not looked at."""
    while Path(f"/proc/{pid}").exists():
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return
        os.sched_yield()
