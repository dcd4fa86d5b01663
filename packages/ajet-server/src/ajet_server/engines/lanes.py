"""The weight versions that an engine can sample from: the one that is being trained, and a few that evaluations name.

Each has calls, slots and keys of its own, so a version never reads what another computed. A step is one version's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ajet_core.errors import UnavailableError
from ajet_server.engines.attention import ATTENTION
from ajet_server.engines.calls import Call
from ajet_server.engines.linear import use_onednn
from ajet_server.engines.scheduler import Scheduler

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LIVE_STEPS = 3
"""Steps of the live version for each one of a named version, while both have work: evaluations do not hold training."""


@dataclass(slots=True, eq=False)
class Lane:
    """One version.

    Attributes:
        model: its weights.
        scheduler: its calls, with their keys and values.
        used: when it last got a call; grows.
        stepped: when it last had a step; grows.
    """

    model: "PreTrainedModel"
    scheduler: Scheduler
    used: int = 0
    stepped: int = 0

    @property
    def busy(self) -> bool:
        """Whether a call runs or waits here."""
        return bool(self.scheduler.running or self.scheduler.waiting)


class Lanes:
    """The live version and at most `most` named ones.

    Args:
        live: the version that is being trained. It stays.
        most: named versions held at a time; the one that was not used for longest goes first.
    """

    def __init__(self, live: Lane, most: int) -> None:
        self.live = live
        self._most = most
        self._named: dict[int, Lane] = {}
        self._tick = 0
        self._live_steps = 0

    @property
    def all(self) -> list[Lane]:
        """Every version that is held."""
        return [self.live, *self._named.values()]

    @property
    def named(self) -> list[int]:
        """The named versions that are held."""
        return sorted(self._named)

    def hold(self, version: int, make: Callable[[], Lane]) -> None:
        """Has a named version here from now on; made only if it is not.

        Raises:
            UnavailableError: there is no room, because calls run on every version that is held.
        """
        if version not in self._named:
            if len(self._named) >= self._most:
                self._drop_one(version)
            self._named[version] = make()
        self._tick += 1
        self._named[version].used = self._tick

    def of(self, version: int | None) -> Lane:
        """Returns the lane of a version that is held; None is the live one."""
        return self.live if version is None else self._named[version]

    def find(self, request_id: str) -> tuple[Lane, Call] | None:
        """Returns the call of that name and where it is."""
        found = ((lane, lane.scheduler.find(request_id)) for lane in self.all)
        return next(((lane, call) for lane, call in found if call is not None), None)

    def turn(self) -> Lane:
        """Returns whose step is next: the live version's mostly, while it has work, and the others' in turn."""
        busy = [lane for lane in self._named.values() if lane.busy]
        if not busy or (self.live.busy and self._live_steps < _LIVE_STEPS):
            self._live_steps += 1
            return self.live
        self._live_steps = 0
        self._tick += 1
        lane = min(busy, key=lambda lane: lane.stepped)
        lane.stepped = self._tick
        return lane

    def _drop_one(self, wanted: int) -> None:
        idle = [version for version, lane in self._named.items() if not lane.busy]
        if not idle:
            names = ", ".join(map(str, self.named))
            raise UnavailableError(
                f"weights: there is no room for version {wanted} while calls run on version {names} "
                f"(engine.eval_versions={self._most}); send the call again later",
                retry_after_s=1.0,
            )
        del self._named[min(idle, key=lambda version: self._named[version].used)]


def prepared(model: "PreTrainedModel") -> "PreTrainedModel":
    """Makes a model ready for an engine: its attention reads the slots, and nothing of it is trained."""
    model.set_attn_implementation(ATTENTION)
    model.eval().requires_grad_(False)
    use_onednn(model)
    return model
