"""Kill points: when and whom, drawn from a seed, and what became of each."""

import random
from dataclasses import dataclass
from typing import Literal

Target = Literal["api", "worker", "both", "client"]
_TARGETS: dict[Target, float] = {"api": 0.35, "worker": 0.33, "both": 0.25, "client": 0.07}
_WITHIN_S = {
    "rolling": 0.35,
    "draining": 0.006,
    "updating": 0.15,
    "checkpoint": 0.05,
    "recording": 0.004,
    "syncing": 0.06,
    "booting": 5.0,
    "starting": 1.5,
    "any": 3.0,
}
"""By phase that is aimed at: how long after it was heard of a kill may come, seconds. `any` aims at none."""
_PHASES = {
    "rolling": 0.22,
    "draining": 0.08,
    "updating": 0.16,
    "checkpoint": 0.18,
    "recording": 0.06,
    "syncing": 0.08,
    "booting": 0.08,
    "starting": 0.05,
    "any": 0.09,
}
AT_ONCE = ("booting", "starting")
"""Phases that only come after another kill, so nothing is waited for in between."""


@dataclass(frozen=True, slots=True)
class Point:
    """One kill.

    Attributes:
        target: who is killed, with SIGKILL.
        aim: the phase that is waited for; the kill comes `delay_s` after it, wherever the server is by then.
    """

    target: Target
    aim: str
    delay_s: float


@dataclass(slots=True)
class Struck:
    """What a kill hit.

    Attributes:
        target: who was killed.
        phase: what the server was doing at that instant.
        step: updates that were done.
        acknowledged: finishes acknowledged by the time that everything ran again.
        lost: how many of these the ledger did not have then.
        problems: anything else that was wrong.
        recovery_s: until episodes were handed out again; None where the next kill came first.
    """

    target: Target
    phase: str
    step: int
    acknowledged: int = 0
    lost: int = 0
    problems: int = 0
    recovery_s: float | None = None

    @property
    def clean(self) -> bool:
        """Nothing lost, nothing wrong."""
        return not self.lost and not self.problems


def draw(count: int, seed: int) -> list[Point]:
    """Returns the points of a seed: the same seed, the same points."""
    rng, points = random.Random(seed), list[Point]()
    while len(points) < count:
        aim = rng.choices(list(_PHASES), list(_PHASES.values()))[0]
        target = rng.choices(list(_TARGETS), list(_TARGETS.values()))[0]
        point = Point(target, aim, rng.uniform(0.0, _WITHIN_S[aim]))
        # The server does not boot because its client was killed, and a client is no part of its booting.
        after_boot = bool(points) and points[-1].target != "client" and target != "client"
        if aim not in AT_ONCE or after_boot:
            points.append(point)
    return points
