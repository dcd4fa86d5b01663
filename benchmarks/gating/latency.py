"""Requests per second and latencies of every gateway, and of the engine alone, with few and many clients."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .load import LoadError, Measured, Script, Target, run_for

CLIENTS = (1, 64, 512)
_WARM_UP_CLIENTS, _WARM_UP_S = 16, 0.5
_LIMIT_S = 180.0
_OURS = ("bare", "ours")
"""If one of these fails there is nothing to show; a peer that fails is told as skipped."""


@dataclass(frozen=True)
class Plan:
    """How long a server is under load at a time, and how often; of all times the one with most answers counts."""

    seconds: float
    rounds: int


class Latencies:
    """Measures servers in turns, so that all meet the same machine.

    Attributes:
        answered: how many requests each has answered in all.
        skipped: what could not be measured, and why.
    """

    def __init__(self, targets: Mapping[str, Target], script: Script, plan: Plan) -> None:
        self.answered = dict.fromkeys(targets, 0)
        self.skipped: dict[str, str] = {}
        self._targets, self._script, self._plan = targets, script, plan

    def measure(self, progress: Callable[[str], None]) -> dict[str, Any]:
        """By number of clients: `ours`, `bare`, and `peers` by name."""
        for name in self._targets:
            progress(f"{name}: warming up")
            self._load(name, _WARM_UP_CLIENTS, _WARM_UP_S)
        return {str(count): self._at(count, progress) for count in CLIENTS}

    def _at(self, count: int, progress: Callable[[str], None]) -> dict[str, Any]:
        best: dict[str, Measured] = {}
        for turn in range(self._plan.rounds):
            for name in self._targets:
                progress(f"{count} clients, round {turn + 1} of {self._plan.rounds}: {name}")
                measured = self._load(name, count, self._plan.seconds)
                if measured and (name not in best or _rps(measured) > _rps(best[name])):
                    best[name] = measured
        floor_ms = _quantile_ms(best["bare"], 0.5)
        cells = {name: _cell(measured, floor_ms) for name, measured in best.items()}
        return {name: cells.pop(name) for name in _OURS} | {"peers": cells}

    def _load(self, name: str, count: int, seconds: float) -> Measured | None:
        try:
            measured = run_for(self._targets[name], count, self._script, seconds, _LIMIT_S)
        except (LoadError, OSError) as error:
            if name in _OURS:
                raise
            self.skipped[f"{name}, {count} clients"] = str(error)
            return None
        self.answered[name] += len(measured.latencies)
        return measured


def _cell(measured: Measured, floor_ms: float) -> dict[str, float]:
    p50_ms = _quantile_ms(measured, 0.5)
    return {
        "rps": _rps(measured),
        "p50_ms": p50_ms,
        "p99_ms": _quantile_ms(measured, 0.99),
        "added_p50_ms": p50_ms - floor_ms,
        "client_load": measured.client_load,
    }


def _rps(measured: Measured) -> float:
    return len(measured.latencies) / measured.seconds


def _quantile_ms(measured: Measured, part: float) -> float:
    ordered = sorted(measured.latencies)
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)] / 1e6
