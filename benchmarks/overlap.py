"""What rolling during updates is worth: the same job with each `engine.during_update`, on calls of uneven length.

A real server with the micro model, and one client that always has more rollouts to make. Steps are counted from the
first one on, which warms up. While an update computes, worker and engine share one thread: what is won is the time in
which a drained engine waits for its longest call, and for the next episodes to begin.
"""

import argparse
import random
import sqlite3
import tempfile
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import httpx2
import yaml

from ajet_cli.spawn import spawn_server
from ajet_client import Episode, Swarm, Task
from ajet_core.events import StepReport
from ajet_server.demo.micro import make_micro_model
from measure import finish, machine

_MODES = ("drain", "finish", "continue")
_SIZE, _GROUP = 2, 8
_LENGTHS = (8, 8, 16, 200)
"""Tokens of a call, each as likely: one in four is long."""
_TOOL_S = 0.7
"""Seconds that an agent's tool takes between its two calls. The engine has nothing to do for it meanwhile."""
_BOOT_S = 120.0


def measure(mode: str, model: Path, folder: Path, steps: int) -> dict[str, Any]:
    """Trains `steps` steps after the first and returns the figures of these."""
    job = {
        "model": {"path": str(model)},
        "method": "full",
        "optimizer": {"learning_rate": 1e-3},
        "batch": {"policy": "groups", "size": _SIZE, "group_size": _GROUP, "max_staleness": 2},
        "engine": {"during_update": mode},
        "trainer": {"pack_tokens": 512, "epochs": 2},
        "limits": {"max_completion_tokens": max(_LENGTHS)},
    }
    data_dir, job_file = folder / mode, folder / f"{mode}.yaml"
    job_file.write_text(yaml.safe_dump(job), "utf-8")
    server = spawn_server(data_dir, ["--port", "0", "--job", str(job_file)])
    try:
        with Swarm(server.url) as swarm, httpx2.Client(timeout=_BOOT_S) as http:
            swarm.wait_until_serving(_BOOT_S)
            tasks = [Task(data=number) for number in range(_SIZE * (steps + 1))]
            agent = partial(_agent, http=http)
            swarm.run(agent, tasks, group_size=_GROUP, concurrency=2 * _SIZE * _GROUP, progress=False)
            for event in swarm.events():
                if event.type == "weights_synced" and event.weight_version > steps:
                    break
    finally:
        server.process.terminate()
        server.process.wait(60)
    return _figures(data_dir / "ledger.sqlite")


def _agent(episode: Episode, http: httpx2.Client) -> float:
    chance = random.Random(episode.id)
    first = _call(episode, http, chance.choice(_LENGTHS))
    time.sleep(_TOOL_S)
    return float((first + _call(episode, http, chance.choice(_LENGTHS))) % 3)


def _call(episode: Episode, http: httpx2.Client, wanted: int) -> int:
    messages = [{"role": "user", "content": "go on"}]
    answer = http.post(
        f"{episode.base_url}/chat/completions",
        json={"model": episode.model, "messages": messages, "max_tokens": wanted},
        headers={"Authorization": f"Bearer {episode.api_key}"},
    ).raise_for_status()
    return int(answer.json()["usage"]["completion_tokens"])


def _figures(ledger: Path) -> dict[str, Any]:
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as db:
        done = db.execute("SELECT done_at, report FROM batches WHERE status = 'done' ORDER BY step").fetchall()
        began, ended = done[0][0], done[-1][0]
        query = "SELECT sum(completion_tokens) FROM calls WHERE at BETWEEN ? AND ?"
        tokens = db.execute(query, (began, ended)).fetchone()[0]
    reports = [StepReport.model_validate_json(text) for _, text in done[1:]]
    updating = sum(sum(report.seconds.values()) for report in reports)
    overlapped = sum(report.overlap_tokens for report in reports)
    return {
        "steps_per_minute": 60 * len(reports) / (ended - began),
        "tokens_per_second": tokens / (ended - began),
        "update_seconds": updating / len(reports),
        "rolling_tokens_per_second": (tokens - overlapped) / (ended - began - updating),
        "updating_tokens_per_second": overlapped / updating,
        "staleness_mean": mean(report.staleness_mean for report in reports),
        "mixed_calls": sum(report.mixed_calls for report in reports),
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    """Returns a Markdown table."""
    names = list(results["drain"])
    lines = [
        f"| during_update | {' | '.join(name.replace('_', ' ') for name in names)} |",
        "|---" * (1 + len(names)) + "|",
    ]
    lines += [f"| {mode} | {' | '.join(f'{line[name]:.2f}' for name in names)} |" for mode, line in results.items()]
    return "\n".join(lines)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = make_micro_model(Path(folder) / "micro", seed=0)
        results = {mode: measure(mode, model, Path(folder), arguments.steps) for mode in _MODES}
    finish({"machine": machine(), "results": results}, table(results), as_json=arguments.json)


if __name__ == "__main__":
    main()
