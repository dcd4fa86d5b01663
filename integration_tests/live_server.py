"""A server process under test: start it, look at it, kill it, start it again on the same data."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import yaml
from openai import OpenAI

from ajet_cli.spawn import SpawnedServer, spawn_server
from ajet_client import Episode, Role, Swarm

BOOT_S = 110.0


def micro_job(model: Path, **sections: object) -> dict[str, Any]:
    """Returns a job for the micro model: full training, small groups, few tokens. `sections` replace whole sections."""
    job: dict[str, Any] = {
        "name": "test",
        "model": {"path": str(model)},
        "method": "full",
        "optimizer": {"learning_rate": 1e-2},
        "batch": {"policy": "groups", "size": 2, "group_size": 4},
        "limits": {"max_completion_tokens": 32, "lease_s": 60, "drain_timeout_s": 5},
        "checkpoint": {"keep": 2},
    }
    return job | sections


class LiveServer:
    """`ajet server start` as its own process."""

    def __init__(self, data_dir: Path, job: dict[str, Any]) -> None:
        self.data_dir = data_dir
        self.job = job
        self._spawned: SpawnedServer | None = None

    @property
    def url(self) -> str:
        assert self._spawned is not None, "the server was not started"
        return self._spawned.url

    @property
    def pid(self) -> int:
        assert self._spawned is not None, "the server was not started"
        return self._spawned.process.pid

    def start(self, port: int = 0) -> None:
        """Starts the process, on a free port by default, and returns when it listens."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        job_file = self.data_dir.parent / f"{self.data_dir.name}-job.yaml"
        job_file.write_text(yaml.safe_dump(self.job), "utf-8")
        self._spawned = spawn_server(self.data_dir, ["--port", str(port), "--job", str(job_file)])

    def kill(self) -> None:
        """Kills the API process with -9, as a power cut would."""
        assert self._spawned is not None, "the server was not started"
        self._spawned.process.kill()
        self._spawned.process.wait()
        (self.data_dir / "server.json").unlink()
        self._spawned = None

    def end(self) -> None:
        """Ends it in order if it runs."""
        if self._spawned is None:
            return
        self._spawned.process.terminate()
        self._spawned.process.wait(30)
        self._spawned = None

    def swarm(self) -> Swarm:
        return Swarm(self.url, timeout=30.0)

    def http(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=60.0)

    def wait_until_rolling(self) -> None:
        with self.swarm() as swarm:
            swarm.wait_until_serving(BOOT_S)

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Reads the ledger from outside."""
        with closing(sqlite3.connect(f"file:{self.data_dir / 'ledger.sqlite'}?mode=ro", uri=True)) as ledger:
            return ledger.execute(query, parameters).fetchall()

    def log(self) -> str:
        return (self.data_dir / "server.log").read_text("utf-8", errors="replace")


StartServer = Callable[..., LiveServer]
"""Starts a server that ends with the test; keyword arguments replace sections of the job."""


@cache
def shared_client() -> OpenAI:
    """One connection pool for the session: each client of its own would load the certificates anew."""
    return OpenAI(api_key="each episode has its own", max_retries=0)


def say(episode: Episode | Role, text: str, *, max_tokens: int = 8, timeout_s: float = 60.0) -> str:
    """One call through the official OpenAI SDK."""
    client = shared_client().with_options(base_url=episode.base_url, api_key=episode.api_key)
    answer = client.chat.completions.create(
        model=episode.model,
        messages=[{"role": "user", "content": text}],
        max_tokens=max_tokens,
        timeout=timeout_s,
    )
    return answer.choices[0].message.content or ""


def wait_for_version(swarm: Swarm, version: int) -> None:
    """Returns once the engine serves weights of at least `version`."""
    for event in swarm.events():
        if event.type == "weights_synced" and event.weight_version >= version:
            return


def share_of_digits(text: str) -> float:
    """The reward of these tests: easy to raise for a random model."""
    return sum(character.isdecimal() and character.isascii() for character in text) / max(len(text), 1)


def run_cli(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs `ajet` as a user would."""
    return subprocess.run(
        [sys.executable, "-m", "ajet_cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
        env={**os.environ, **(env or {})},
    )


def last_json(text: str) -> dict[str, Any]:
    """Parses the last line of a command's output."""
    value: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    return value
