"""What happened so far, fed by the server's events and the client's rounds; read by the live view and the report."""

import threading
from dataclasses import dataclass, field
from typing import Any

from ajet_core.events import (
    EngineState,
    EpisodeFinished,
    EpisodeLost,
    EpisodeOpened,
    Event,
    StateChanged,
    StepFinished,
    StepReport,
    UpdateProgress,
    WeightsSynced,
)


@dataclass
class Update:
    """One update: the step's report, and the seconds of rolling before and of syncing after it."""

    report: StepReport
    rollout_s: float
    sync_s: float | None = None
    probe_error: float | None = None


@dataclass
class Progress:
    """Thread-safe by one lock: two threads write, one reads."""

    state: EngineState = EngineState.OFFLINE
    cause: str = ""
    stage: str = ""
    opened: int = 0
    finished: int = 0
    lost: int = 0
    updates: list[Update] = field(default_factory=list[Update])
    rounds: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def rewards(self) -> list[float]:
        """Mean reward before the first update, then after each one."""
        return [float(line["reward"]) for line in self.rounds]

    def add_round(self, line: dict[str, Any]) -> None:
        """Takes a round of the client."""
        with self.lock:
            self.rounds.append(line)

    def add_event(self, event: Event) -> None:
        """Takes an event of the server."""
        with self.lock:
            self._take(event)

    def _take(self, event: Event) -> None:
        match event:
            case StateChanged():
                self.state, self.cause, self.stage = event.state, event.cause, ""
            case EpisodeOpened():
                self.opened += 1
            case EpisodeFinished():
                self.finished += 1
            case EpisodeLost():
                self.lost += 1
            case UpdateProgress():
                self.stage = f"{event.stage} {event.done}/{event.total}"
            case StepFinished():
                self.updates.append(Update(event.report, event.rollout_s))
            case WeightsSynced() if self.updates:
                self.updates[-1].sync_s = event.seconds
                self.updates[-1].probe_error = event.probe_error
            case _:
                pass
