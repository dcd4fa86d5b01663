"""Does a server stay as it is? Episodes by the thousand, a thousand at a time: failures, memory, open files."""

import argparse
import asyncio
import json
import resource
import sys
import time
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table

from gating.texts import make_folder
from processes import Child
from soaking.episodes import Agents
from soaking.reading import Reading, look

_START_S = 60.0
_EVERY = 1000
_WARM = 0.3
"""Part of the episodes after which memory has to stay: by then every pool and cache has its size."""


def run(episodes: int, at_once: int) -> dict[str, Any]:
    """Runs episodes against a server of its own and returns what was seen."""
    _allow_files(2 * at_once + 100)
    with TemporaryDirectory() as folder_name:
        folder, data = Path(folder_name), Path(folder_name) / "data"
        answer = make_folder(folder).text
        script = Path(__file__).with_name("soaking") / "server.py"
        server = Child([sys.executable, str(script), str(folder), str(data), str(at_once)])
        try:
            return _soak(server, data, answer, episodes, at_once)
        finally:
            server.stop()


def _soak(server: Child, data: Path, answer: str, episodes: int, at_once: int) -> dict[str, Any]:
    url = server.answer(_START_S)
    began = time.perf_counter()
    readings = [look(server.pid, data, 0, 0.0)]
    every = min(_EVERY, max(episodes // 10, 1))
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("episodes", total=episodes)

        def on_done(done: int) -> None:
            progress.advance(bar)
            if done % every == 0 or done == episodes:
                readings.append(look(server.pid, data, done, time.perf_counter() - began))

        agents = Agents(url.strip(), at_once, answer, on_done)
        asyncio.run(agents.run(episodes))
    seconds = time.perf_counter() - began
    return {
        "episodes": episodes,
        "concurrent": at_once,
        "most_open": agents.most_open,
        "failures": dict(agents.failures),
        "episodes_per_second": episodes / seconds,
        "growth_after_warm_up": growth(readings),
        "readings": [asdict(reading) for reading in readings],
    }


def growth(readings: list[Reading]) -> float:
    """How much larger memory was at the end than when the server was warm, as a part of that.

    Single looks catch what is just in flight, so the medians of the looks in the first and in the last third after the
    warm-up are compared.
    """
    warm = [reading.resident_mb for reading in readings if reading.episodes >= _WARM * readings[-1].episodes]
    third = max(len(warm) // 3, 1)
    before, after = sorted(warm[:third])[third // 2], sorted(warm[-third:])[third // 2]
    return after / before - 1


def _allow_files(count: int) -> None:
    """Raises this process's limit of open files, and that of those it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


def show(result: dict[str, Any]) -> None:
    """Prints the readings."""
    table = Table("episodes", "s", "memory, MB", "open files", "ledger, MB")
    for reading in result["readings"]:
        values = (reading["seconds"], reading["resident_mb"], reading["files"], reading["ledger_mb"])
        table.add_row(str(reading["episodes"]), *(f"{value:.1f}" for value in values))
    console = Console(width=100)
    console.print(table)
    console.print(
        f"{result['episodes_per_second']:.1f} episodes/s, up to {result['most_open']} open at once; memory grew by "
        f"{result['growth_after_warm_up']:.1%} after the warm-up; {sum(result['failures'].values())} episodes failed"
    )
    for what, count in result["failures"].items():
        console.print(f"{count} x {what}", highlight=False, markup=False)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--concurrent", type=int, default=1000, help="episodes at a time")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    arguments = parser.parse_args()
    result = run(arguments.episodes, arguments.concurrent)
    show(result)
    if arguments.json:
        print(json.dumps(result))
    if result["failures"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
