"""From saving an edited reward function to the next finished episode: seconds, with the server untouched.

A real server trains a micro model; `ajet run` drives it with an agent of two files. Again and again the reward
function is replaced by one with another result, as an editor saves a file, until the ledger has a finished episode
with it.
"""

import argparse
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from ajet_cli.spawn import SpawnedServer, spawn_server
from ajet_client import Swarm
from ajet_server.demo.micro import make_micro_model
from measure import finish, machine

_AGENT = """
import json
import os
import sys
from urllib.request import Request, urlopen

from reward import reward


def play(base_url, api_key, model):
    body = {"model": model, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {api_key}"}
    request = Request(f"{base_url}/chat/completions", json.dumps(body).encode(), headers)
    with urlopen(request, timeout=60) as answer:
        return reward(json.load(answer)["choices"][0]["message"]["content"])


def agent(episode):
    return play(episode.base_url, episode.api_key, episode.model)


if __name__ == "__main__":
    print(play(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], os.environ["AJET_MODEL"]))
"""
_REWARD = "def reward(text):\n    return {reward} + 1e-9 * len(text)\n"
_ATTENTION_S = 0.003
_PATIENCE_S = 120.0


def write_agent(folder: Path) -> Path:
    """Writes the agent and its first reward function."""
    (folder / "agent.py").write_text(_AGENT, "utf-8")
    save_reward(folder, 0)
    return folder / "agent.py"


def save_reward(folder: Path, reward: int) -> float:
    """Saves a reward function, and returns when (`time.perf_counter`)."""
    fresh = folder / "reward.new"
    fresh.write_text(_REWARD.format(reward=reward), "utf-8")
    began = time.perf_counter()
    fresh.replace(folder / "reward.py")
    return began


def wait_for_reward(ledger: Path, reward: int, client: subprocess.Popen[bytes]) -> float:
    """Returns when the ledger had a finished episode with that reward."""
    query = "SELECT 1 FROM episodes WHERE status = 'finished' AND reward >= ? AND reward < ? LIMIT 1"
    until = time.perf_counter() + _PATIENCE_S
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as db:
        while db.execute(query, (reward, reward + 0.5)).fetchone() is None:
            if client.poll() is not None or time.perf_counter() > until:
                raise RuntimeError(f"no episode got the reward {reward}; the client's status is {client.poll()}")
            time.sleep(_ATTENTION_S)
    return time.perf_counter()


def processes_of(pid: int) -> list[int]:
    """Returns the server's process and those that it started."""
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split())]


def modes(agent: Path) -> dict[str, list[str]]:
    """How the agent is run -> the arguments of `ajet run`.

    `-B`: Python's bytecode would hide an edit that leaves the file's size and second as they were.
    """
    return {
        "thread": [str(agent), "--watch"],
        "process": [str(agent), "--watch", "--isolation", "process"],
        "command": ["--cmd", f"{sys.executable} -B {agent}"],
    }


@contextmanager
def running_server(folder: Path) -> Generator[SpawnedServer]:
    """A server that trains a micro model, for a `with` block."""
    job = {
        "name": "hot-swap",
        "model": {"path": str(make_micro_model(folder / "micro", seed=0))},
        "method": "full",
        "batch": {"policy": "groups", "size": 8, "group_size": 4},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job), "utf-8")
    server = spawn_server(folder / "server", ["--port", "0", "--job", str(folder / "job.yaml")])
    try:
        with Swarm(server.url) as swarm:
            swarm.wait_until_serving()
        yield server
    finally:
        server.process.terminate()
        server.process.wait(60)


@contextmanager
def running_client(url: str, folder: Path, arguments: list[str]) -> Generator[subprocess.Popen[bytes]]:
    """`ajet run` without end, for a `with` block."""
    (folder / "tasks.jsonl").write_text("".join(f"{number}\n" for number in range(16)), "utf-8")
    command = [sys.executable, "-m", "ajet_cli", "run", url, *arguments, "--tasks", str(folder / "tasks.jsonl")]
    with (folder / "client.log").open("wb") as log:
        client = subprocess.Popen([*command, "--repeat", "0", "--concurrency", "4"], stdout=log, stderr=log)
        try:
            yield client
        finally:
            client.terminate()
            client.wait(60)


def swap(server: SpawnedServer, folder: Path, arguments: list[str], first: int, swaps: int) -> list[float]:
    """Returns the seconds of each swap. The rewards are `first` and the numbers after it."""
    ledger = folder / "server" / "ledger.sqlite"
    save_reward(folder, first)
    seconds: list[float] = []
    with running_client(server.url, folder, arguments) as client:
        wait_for_reward(ledger, first, client)
        for number in range(first + 1, first + 1 + swaps):
            began = save_reward(folder, number)
            seconds.append(wait_for_reward(ledger, number, client) - began)
    return seconds


def run(swaps: int) -> dict[str, Any]:
    """Swaps in every mode, one after the other, on one server."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        agent = write_agent(folder)
        with running_server(folder) as server:
            before = processes_of(server.process.pid)
            seconds = {
                mode: swap(server, folder, arguments, 1 + place * (swaps + 1), swaps)
                for place, (mode, arguments) in enumerate(modes(agent).items())
            }
            with Swarm(server.url) as swarm:
                updates = swarm.status().step
            after = processes_of(server.process.pid)
    return {
        "machine": machine(),
        "swaps": swaps,
        "seconds": seconds,
        "median": {mode: median(values) for mode, values in seconds.items()},
        "max": {mode: max(values) for mode, values in seconds.items()},
        "updates": updates,
        "server_untouched": before == after,
    }


def table(result: dict[str, Any]) -> str:
    """Returns a Markdown table."""
    lines = ["| agent in | median, s | longest, s |", "|---|---|---|"]
    lines += [f"| {mode} | {result['median'][mode]:.2f} | {result['max'][mode]:.2f} |" for mode in result["seconds"]]
    untouched = "the same" if result["server_untouched"] else "NOT the same"
    return "\n".join([*lines, "", f"{result['updates']} updates meanwhile; the server's processes are {untouched}"])


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--swaps", type=int, default=10, help="how often to edit, for each way to run the agent")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    arguments = parser.parse_args()
    result = run(arguments.swaps)
    finish(result, table(result), as_json=arguments.json)
    if not result["server_untouched"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
