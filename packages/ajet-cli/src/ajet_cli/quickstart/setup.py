"""The model, the job, the folders and the two processes of a quickstart."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import platformdirs

from ajet_cli.quickstart.agents import GROUP_SIZE, GROUPS
from ajet_cli.spawn import SpawnedServer, spawn_server
from ajet_core.errors import ConfigError, EngineFailedError

Sharing = Literal["auto", "forest", "rows", "calls"]
"""How much calls share in an update: the job's `trainer.sharing`."""

_END_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Plan:
    """What a quickstart runs.

    Attributes:
        folder: of this run; holds the server's data, the job, the report.
        agent: name in `agents.AGENTS`.
    """

    folder: Path
    model: Path
    agent: str
    updates: int
    seed: int
    sharing: Sharing

    @property
    def data_dir(self) -> Path:
        """The server's data folder."""
        return self.folder / "server"


def prepare(
    out: Path,
    model: Path | None,
    *,
    tiny: bool,
    updates: int,
    seed: int,
    sharing: Sharing,
    log: Callable[[str], None],
) -> Plan:
    """Finds or makes the model and writes the job.

    Raises:
        ConfigError: the packages or the model folder are missing.
    """
    try:
        from ajet_server.demo.micro import make_micro_model
        from ajet_server.demo.smollm import smollm_folder
        from ajet_server.models.folder import open_model_folder
    except ModuleNotFoundError as error:
        raise ConfigError(f"the quickstart is not installed here ({error}); install ajet-cli[quickstart]") from error
    if model is not None:
        open_model_folder(model)
    folder = out / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"out: {folder} cannot be made: {error}", field="out") from error
    if tiny:
        model = make_micro_model(folder / "micro-model", seed)
    elif model is None:
        model = smollm_folder(Path(platformdirs.user_cache_dir("ajet")), log)
    plan = Plan(folder.resolve(), model.resolve(), "digits" if tiny else "calculator", updates, seed, sharing)
    _write_job(plan, tiny=tiny)
    return plan


def _write_job(plan: Plan, *, tiny: bool) -> None:
    import yaml

    job: dict[str, Any] = {
        "name": "quickstart",
        "seed": plan.seed,
        "model": {"path": str(plan.model)},
        "method": "full" if tiny else "lora",
        "optimizer": {"learning_rate": 1e-2 if tiny else 5e-4},
        "batch": {"policy": "groups", "size": GROUPS, "group_size": GROUP_SIZE},
        "engine": {"max_batch_size": GROUPS * GROUP_SIZE},
        "limits": {"max_completion_tokens": 64},
        "trainer": {"sharing": plan.sharing},
    }
    (plan.folder / "job.yaml").write_text(yaml.safe_dump(job, sort_keys=False), "utf-8")


def start_server(plan: Plan) -> SpawnedServer:
    """Starts the server on a free port. Raises `EngineFailedError` with the end of its log."""
    return spawn_server(plan.data_dir, ["--port", "0", "--job", str(plan.folder / "job.yaml")])


class ClientProcess:
    """The quickstart's client, running. Its rounds come out of `lines`."""

    def __init__(self, plan: Plan, url: str) -> None:
        self._log = plan.folder / "client.log"
        arguments = ["--url", url, "--agent", plan.agent, "--updates", str(plan.updates), "--seed", str(plan.seed)]
        with self._log.open("wb") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ajet_cli.quickstart.client", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=sink,
            )

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yields each round as it ends. Raises `EngineFailedError` when the client fails, quoting its log."""
        stream = self._process.stdout
        if stream is None:
            raise RuntimeError("the client was started without a pipe")
        for line in stream:
            yield json.loads(line)
        if code := self._process.wait():
            tail = self._log.read_text("utf-8", errors="replace").strip().splitlines()[-3:]
            raise EngineFailedError(f"the client ended with exit code {code}: {' / '.join(tail)} (log: {self._log})")

    def end(self) -> None:
        """Ends the client if it still runs."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def in_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """Starts a daemon thread."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread
