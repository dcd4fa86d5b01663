"""One server for all agents, which run at the same time: the engine batches what they ask."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from ajet_client import Swarm
from ajet_server.capture.calls import WholeCall
from conformance.frameworks import FRAMEWORKS, TASK, Framework
from conformance.model import adder_folder
from conformance.recorded import calls_of
from live_server import LiveServer

_AT_ONCE = 4


@dataclass(frozen=True)
class Ran:
    """An agent that came to its end: what it saw, and what was recorded meanwhile."""

    seen: dict[str, Any]
    calls: list[WholeCall]


Runs: TypeAlias = dict[str, Future[Ran]]
"""By name of the framework; those that are not here are missing."""


@pytest.fixture(scope="session")
def adder_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    job = {"name": "conformance", "model": {"path": str(adder_folder(TASK)), "served_name": "adder"}}
    server = LiveServer(tmp_path_factory.mktemp("conformance") / "server", job)
    server.start()
    server.wait_until_rolling()
    yield server
    server.end()


@pytest.fixture(scope="session")
def runs(adder_server: LiveServer) -> Iterator[Runs]:
    """All agents, started; a test waits for its own."""
    with adder_server.swarm() as swarm, ThreadPoolExecutor(_AT_ONCE) as pool:
        yield {
            name: pool.submit(_run, swarm, adder_server.data_dir, name, framework)
            for name, framework in FRAMEWORKS.items()
            if framework.is_here
        }


def _run(swarm: Swarm, data_dir: Path, name: str, framework: Framework) -> Ran:
    with swarm.episode(task=name, kind="eval") as episode:
        seen = framework.run(episode)
        episode.reward(1.0)
    return Ran(seen, calls_of(data_dir, episode.id))
