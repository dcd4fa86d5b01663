"""How time grows with size: the slope of log(time) over log(unmerged tokens), from four sizes of a case."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ajet_merge import Forest, merge

from .cases import Captured, grown
from .clock import best_of_rounds, seconds
from .ours import calls_of, limits, pack_budget


def _stage_times(captured: list[Captured], budget_s: float) -> dict[str, float]:
    """Best seconds of the merge, of each stage after it on a fresh forest, and of reading every id once."""
    calls, budget = calls_of(captured), pack_budget(captured)
    reading = limits(captured)

    def on_fresh_forests(stage: Callable[[Forest], Any]) -> float:
        best = float("inf")
        deadline = time.perf_counter() + budget_s
        while time.perf_counter() < deadline:
            forest = merge(calls)
            best = min(best, seconds(lambda forest=forest: stage(forest)))
        return best

    return {
        "": best_of_rounds({"": lambda: merge(calls)}, budget_s)[""],
        ".packs": on_fresh_forests(lambda forest: (forest.occurrences, forest.packs(budget))),
        ".rows": on_fresh_forests(lambda forest: forest.timelines()),
        ".limit": min(best_of_rounds(reading, budget_s).values()),
    }


def measure(name: str, seed: int, budget_s: float) -> dict[str, Any]:
    """The case's exponents: of the merge under its name, of stages after it under name.packs and name.rows.

    `name.limit` is that of reading every id once, by the fastest way: where it exceeds 1, the larger sizes have left a
    cache that the smaller ones fit.

    Returns:
        `exponents` by name, and `points`: unmerged tokens and microseconds of each, for plotting.
    """
    tokens: list[int] = []
    times: dict[str, list[float]] = {}
    for captured in grown(name, seed):
        tokens.append(sum(call.prompt.size + call.completion.size for call in captured))
        for stage, best in _stage_times(captured, budget_s).items():
            times.setdefault(name + stage, []).append(best * 1e6)
    slope = {key: float(np.polyfit(np.log(tokens), np.log(values), 1)[0]) for key, values in times.items()}
    return {"exponents": slope, "points": {"tokens": tokens, "us": times}}
