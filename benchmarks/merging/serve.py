"""The loop of a peer's process: says "ready" once its packages are loaded, then answers a case's file per line."""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from cases import Captured, load
from clock import best_of_rounds

_BUDGET_S = float(os.environ.get("MERGE_BENCH_BUDGET_S", "1"))


@dataclass(frozen=True)
class Merger:
    """One way to merge.

    Attributes:
        prepare: from captured calls to the input it wants; not timed.
        merge: from that to its result; timed, several times on the same input.
        count: rows and tokens of a result.
    """

    prepare: Callable[[list[Captured]], Any]
    merge: Callable[[Any], Any]
    count: Callable[[Any], tuple[int, int]]

    def measure(self, calls: list[Captured]) -> dict[str, float]:
        """Best time in microseconds (of a single run where one takes longer than the budget), and what came out."""
        given = self.prepare(calls)
        started = time.perf_counter()
        result = self.merge(given)
        best = time.perf_counter() - started
        rows, tokens = self.count(result)
        if best < _BUDGET_S:
            best = min(best, best_of_rounds({"": lambda: self.merge(given)}, _BUDGET_S)[""])
        return {"us": best * 1e6, "rows": rows, "tokens": tokens}


def answers() -> TextIO:
    """A channel to the benchmark; from now on, what packages print goes to stderr. Call before importing them."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return channel


def serve(mergers: dict[str, Merger], channel: TextIO) -> None:
    """Answers until stdin ends: a line with a path -> a line of JSON, results by the merger's name."""
    print("ready", file=channel)
    for line in sys.stdin:
        calls = load(Path(line.strip()))
        print(json.dumps({name: merger.measure(calls) for name, merger in mergers.items()}), file=channel)


def by_episode(calls: list[Captured]) -> dict[int, list[Captured]]:
    """The calls of each episode, in order."""
    episodes: dict[int, list[Captured]] = {}
    for call in calls:
        episodes.setdefault(call.episode, []).append(call)
    return episodes
