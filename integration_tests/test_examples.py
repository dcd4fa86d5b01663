"""The programs in `examples/`, run as their README says."""

import json
import subprocess
import sys
from pathlib import Path

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
    assert server.rows("SELECT count(*) FROM batches WHERE status = 'done'")[0][0] >= 3


def test_the_example_of_a_team_runs(start_server: StartServer) -> None:
    server = start_server(batch={"policy": "groups", "size": 2, "group_size": 2})
    server.wait_until_rolling()
    # Both roles on one server: self-play.
    said = _run(server, "planner_executor.py", server.url, "--tasks", "2")
    assert said.startswith("4 finished, 0 failed")
    assert server.rows("SELECT count(DISTINCT group_id) FROM episodes WHERE status = 'finished'") == [(4,)]
