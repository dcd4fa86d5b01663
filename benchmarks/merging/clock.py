"""How everything here is timed: in turns, so that all meet the same machine, and the best of each."""

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

MIN_ROUNDS = 3


def seconds(function: Callable[[], Any]) -> float:
    """Wall time of one call; releasing the result is not counted."""
    started = time.perf_counter()
    result = function()
    elapsed = time.perf_counter() - started
    del result
    return elapsed


def best_of_rounds(functions: Mapping[str, Callable[[], Any]], budget_s: float) -> dict[str, float]:
    """Best time of each function in seconds, over as many rounds as fit the budget, and at least three.

    The garbage collector is off, as in `timeit`.
    """
    gc.collect()
    gc.disable()
    try:
        best = {name: seconds(function) for name, function in functions.items()}
        deadline = time.perf_counter() + budget_s
        rounds = 1
        while rounds < MIN_ROUNDS or time.perf_counter() < deadline:
            for name, function in functions.items():
                best[name] = min(best[name], seconds(function))
            rounds += 1
    finally:
        gc.enable()
    return best
