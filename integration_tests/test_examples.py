"""The programs in `examples/`, run as their README says."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from live_server import LiveServer, StartServer

_EXAMPLES = Path(__file__).parent.parent / "examples"


def _run(server: LiveServer, name: str, *arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, str(_EXAMPLES / name), server.url, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_examples_run(start_server: StartServer) -> None:
    server = start_server(batch={"policy": "groups", "size": 1, "group_size": 2})
    server.wait_until_rolling()
    usage = json.loads(_run(server, "raw_http.py"))["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert _run(server, "arithmetic.py", "--tasks", "2", "--group-size", "2").startswith("4 finished, 0 failed")
    assert _run(server, "async_arithmetic.py", "--tasks", "2", "--group-size", "2").startswith("4 finished, 0 failed")
    assert _run(server, "self_play.py", "--games", "1").startswith("2 finished, 0 failed")
    evaluated = _run(server, "evaluate.py", "--weights", "0", "--tasks", "2", "--episodes", "2").splitlines()
    assert evaluated[0].startswith("weights 0: 4 finished, 0 failed")
    assert evaluated[1].startswith("pass@1 ")
    assert server.rows("SELECT count(*) FROM batches WHERE status = 'done'")[0][0] >= 3


@pytest.mark.parametrize(
    "answer", ["9**9**9", "9" * 1_000_000, "__import__('os').abort()", "(" * 100_000, "1e999999999", "\u0661\u0662", ""]
)
def test_no_answer_hangs_a_reward(answer: str) -> None:
    """What a model says is looked at in bounded time, and never evaluated."""
    example = _load("arithmetic")
    example.openai = _Answering(answer)
    episode = SimpleNamespace(task={"a": 1, "b": 2}, base_url="", api_key="", model="")
    assert example.agent(episode) in (0.0, 0.1)


class _Answering:
    """Stands in for `OpenAI`: says one thing."""

    def __init__(self, answer: str) -> None:
        self._answer = answer
        self.chat = SimpleNamespace(completions=self)

    def with_options(self, **_: object) -> "_Answering":
        return self

    def create(self, **_: object) -> Any:
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=self._answer))])


def _load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, _EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_of_a_team_runs(start_server: StartServer) -> None:
    server = start_server(batch={"policy": "groups", "size": 2, "group_size": 2})
    server.wait_until_rolling()
    # Both roles on one server: self-play.
    said = _run(server, "planner_executor.py", server.url, "--tasks", "2")
    assert said.startswith("4 finished, 0 failed")
    assert server.rows("SELECT count(DISTINCT group_id) FROM episodes WHERE status = 'finished'") == [(4,)]
