"""What a server does at the moment: over HTTP while it lives, and from its data folder at the instant it is stopped."""

import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Condition, Event, Thread
from typing import Any

import httpx2

_AGAIN_S = 0.05
_LOOK_S = 1.0
_STAGES = {("checkpoint", 0): "checkpoint", ("checkpoint", 1): "recording", ("update", 0): "updating"}
"""Progress that says more than the state does."""


class Watch:
    """Follows the events of a server over all its lives.

    Attributes:
        phase: what was heard last: a state of the engine, `checkpoint` (being written) or `recording` (it is written).
        step: of the last state.
    """

    def __init__(self, url: str) -> None:
        self._http = httpx2.Client(base_url=url, timeout=httpx2.Timeout(10.0, read=None))
        self._changed = Condition()
        self._ended = Event()
        self._last = 0
        self._heard = 0
        self._entered: dict[str, int] = {}
        self.phase = "starting"
        self.step = 0
        Thread(target=self._follow, daemon=True).start()

    @property
    def heard(self) -> int:
        """How many changes of the phase were heard. Give it to `wait`."""
        with self._changed:
            return self._heard

    def wait(self, phase: str, seen: int, limit_s: float) -> bool:
        """Waits until the server has entered a phase, after `seen` changes. Returns whether it did in time."""
        return self._until(lambda: self._entered.get(phase, 0) > seen, limit_s)

    def wait_for_boot(self, seen: int, limit_s: float) -> bool:
        """Waits until the server has booted, after `seen` changes, and hands out episodes again."""
        entered = self._entered
        return self._until(lambda: entered.get("rolling", 0) > entered.get("booting", 0) > seen, limit_s)

    def wait_for_step(self, step: int, limit_s: float) -> bool:
        """Waits until so many updates are done. Returns whether they were in time."""
        return self._until(lambda: self.step >= step, limit_s)

    def close(self) -> None:
        """Ends."""
        self._ended.set()

    def _until(self, true: Callable[[], bool], limit_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(true, limit_s)

    def _follow(self) -> None:
        while not self._ended.is_set():
            try:
                with self._http.stream("GET", "/api/events", params={"after": self._last}) as answer:
                    for line in answer.iter_lines():
                        if line.startswith("data:"):
                            self._take(json.loads(line.removeprefix("data:")))
            except httpx2.HTTPError:
                time.sleep(_AGAIN_S)

    def _take(self, event: dict[str, Any]) -> None:
        self._last = max(self._last, int(event.get("id", 0)))
        if event["type"] == "state_changed":
            self._enter(event["state"], event["step"])
        elif event["type"] == "update_progress" and (stage := _STAGES.get((event["stage"], event["done"]))):
            self._enter(stage, self.step)

    def _enter(self, phase: str, step: int) -> None:
        with self._changed:
            self.phase, self.step = phase, step
            self._heard += 1
            self._entered[phase] = self._heard
            self._changed.notify_all()


def phase_on_disk(data: Path, api_pid: int) -> str:
    """What a server whose processes are stopped was doing, by what it has left on the disk."""
    try:
        if json.loads((data / "server.json").read_text())["pid"] != api_pid:
            return "starting"
        state, step = _last_state(data / "ledger.sqlite")
    except (OSError, ValueError, TypeError, sqlite3.Error):
        return "starting"  # there is no ledger yet, or it is locked while it is made ready
    if state == "updating" and list((data / "checkpoints").glob(".writing-*")):
        return "checkpoint"
    if state == "updating" and (data / "checkpoints" / f"step-{step + 1:06d}").exists():
        return "recording"
    return state


def _last_state(ledger: Path) -> tuple[str, int]:
    with closing(sqlite3.connect(f"{ledger.absolute().as_uri()}?mode=ro", uri=True, timeout=_LOOK_S)) as db:
        query = "SELECT data FROM events WHERE type = 'state_changed' ORDER BY id DESC LIMIT 1"
        event = json.loads(db.execute(query).fetchone()[0])
    return event["state"], event["step"]
