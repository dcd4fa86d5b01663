"""`ajet run` against a real server: programs with the official SDKs, in JavaScript, edited while they run, stopped."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from live_server import LiveServer, last_json, run_cli

_EXAMPLES = Path(__file__).parent.parent / "examples"

_TWO_SDKS = """
import json, os, sys
from anthropic import Anthropic
from openai import OpenAI

task = json.loads(sys.stdin.readline())
messages = [{"role": "user", "content": f"Write digits, number {task['n']}."}]
with OpenAI() as openai:
    said = openai.chat.completions.create(model=os.environ["AJET_MODEL"], messages=messages, max_tokens=8)
with Anthropic() as anthropic:
    more = anthropic.messages.create(model=os.environ["AJET_MODEL"], messages=messages, max_tokens=8)
text = said.choices[0].message.content + "".join(block.text for block in more.content)
print("the model said", repr(text))
print(json.dumps({"reward": sum(map(str.isdigit, text)) / max(len(text), 1), "metrics": {"characters": len(text)}}))
"""

_AGENT = """
from urllib.request import Request, urlopen
import json
from reward import reward

def agent(episode):
    body = {"model": episode.model, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {episode.api_key}"}
    request = Request(f"{episode.base_url}/chat/completions", json.dumps(body).encode(), headers)
    with urlopen(request, timeout=60) as answer:
        return reward(json.load(answer)["choices"][0]["message"]["content"])
"""


def _tasks(folder: Path, count: int) -> str:
    file = folder / "tasks.jsonl"
    file.write_text("".join(json.dumps({"n": number}) + "\n" for number in range(count)))
    return str(file)


def _rewards(server: LiveServer) -> list[float]:
    return [reward for (reward,) in server.rows("SELECT reward FROM episodes WHERE status = 'finished'")]


@contextmanager
def _running(*arguments: str) -> Generator[subprocess.Popen[str]]:
    """`ajet run` in the background; ended with the block if it runs then."""
    command = [sys.executable, "-m", "ajet_cli", "run", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)


def _until(process: subprocess.Popen[str], holds: Callable[[], bool]) -> None:
    while not holds():
        assert process.poll() is None, process.stderr
        os.sched_yield()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_the_official_sdks_need_no_argument(shared_server: LiveServer, tmp_path: Path) -> None:
    program = tmp_path / "agent.py"
    program.write_text(_TWO_SDKS)
    command = shlex.join([sys.executable, str(program)])
    before = shared_server.rows("SELECT count(*) FROM calls")[0][0]
    arguments = ("--cmd", command, "--tasks", _tasks(tmp_path, 2), "--kind", "eval", "--json")
    result = run_cli("run", shared_server.url, *arguments)
    assert result.returncode == 0, result.stderr
    line = last_json(result.stdout)
    assert (line["finished"], line["failed"]) == (2, 0), result.stderr
    assert line["metric_means"]["characters"] > 0
    assert shared_server.rows("SELECT count(*) FROM calls")[0][0] == before + 4


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_example_in_javascript(shared_server: LiveServer, tmp_path: Path) -> None:
    example = _EXAMPLES / "node_agent"
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join((example / "tasks.jsonl").read_text().splitlines(keepends=True)[:4]))
    command = shlex.join(["node", str(example / "agent.js")])
    result = run_cli("run", shared_server.url, "--cmd", command, "--tasks", str(tasks), "--kind", "eval", "--json")
    assert result.returncode == 0, result.stderr
    assert (last_json(result.stdout)["finished"], last_json(result.stdout)["attempts"]) == (4, 4), result.stderr


def test_an_edited_reward_is_the_next_one_and_the_server_is_untouched(
    shared_server: LiveServer, tmp_path: Path
) -> None:
    before = (shared_server.pid, _children(shared_server.pid))
    (tmp_path / "agent.py").write_text(_AGENT)
    (tmp_path / "reward.py").write_text("def reward(text): return 101\n")
    arguments = (shared_server.url, str(tmp_path / "agent.py"), "--tasks", _tasks(tmp_path, 2), "--repeat", "0")
    with _running(*arguments, "--concurrency", "2", "--watch", "--kind", "eval") as run:
        _until(run, lambda: 101 in _rewards(shared_server))
        for text in ("def reward(text) return 102", "def reward(text): return 103"):
            (tmp_path / "reward.new").write_text(text)
            (tmp_path / "reward.new").replace(tmp_path / "reward.py")
        _until(run, lambda: 103 in _rewards(shared_server))
    assert {reward for reward in _rewards(shared_server) if reward > 100} == {101, 103}
    assert (shared_server.pid, _children(shared_server.pid)) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_aborts_the_open_episodes_with_the_reason(
    number: signal.Signals, shared_server: LiveServer, tmp_path: Path
) -> None:
    open_ones = "SELECT id FROM episodes WHERE status = 'open'"
    arguments = (shared_server.url, "--cmd", "sleep 1000", "--tasks", _tasks(tmp_path, 3), "--kind", "eval")
    with _running(*arguments) as run:
        _until(run, lambda: len(shared_server.rows(open_ones)) == 3)
        opened = shared_server.rows(open_ones)
        run.send_signal(number)
        _, errors = run.communicate(timeout=60)
        assert run.returncode == 128 + number, errors
    for (episode_id,) in opened:
        ((status, reason),) = shared_server.rows("SELECT status, reason FROM episodes WHERE id = ?", episode_id)
        assert (status, reason.removeprefix("StoppedError: ")) == (
            "aborted",
            f"the run was stopped: InterruptedRunError: {number.name}",
        )
    assert shared_server.rows(open_ones) == []
