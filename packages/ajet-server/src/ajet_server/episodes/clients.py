"""Which clients are at work, and which of them agree to an update. Knows no clock: every time comes in.

A client takes part while one of its train episodes is open, and for `quiet_s` seconds after it was last heard of, so
that a client between two tasks is waited for, and one that died is not. What it said holds until an update begins.
"""

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Agreement:
    """Who agrees, and who is still asked.

    Attributes:
        ready: clients that said that they are ready, sorted.
        awaited: clients that take part and have not said so, sorted.
    """

    ready: tuple[str, ...] = ()
    awaited: tuple[str, ...] = ()


class Clients:
    """Follows the clients of a job.

    Args:
        quiet_s: how long a client without an open episode still takes part, seconds.
    """

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self._open: Counter[str] = Counter()
        self._heard: dict[str, float] = {}
        self._ready: set[str] = set()

    def opened(self, client_id: str, at: float) -> None:
        """A train episode of the client was opened."""
        self._open[client_id] += 1
        self.heard(client_id, at)

    def closed(self, client_id: str, at: float) -> None:
        """One of them was finished, aborted or expired."""
        self._open[client_id] -= 1
        if self._open[client_id] <= 0:
            del self._open[client_id]
        self.heard(client_id, at)

    def heard(self, client_id: str, at: float) -> None:
        """The client did something."""
        self._heard[client_id] = max(at, self._heard.get(client_id, at))

    def say(self, client_id: str, ready: bool, at: float) -> None:
        """The client agrees, or takes it back."""
        self.heard(client_id, at)
        if ready:
            self._ready.add(client_id)
        else:
            self._ready.discard(client_id)

    def begin_anew(self) -> None:
        """An update begins: everybody is asked again."""
        self._ready.clear()

    def agreement(self, now: float) -> Agreement:
        """Returns who agrees and who is asked at the time `now`."""
        self._heard = {name: at for name, at in self._heard.items() if self._takes_part(name, at, now)}
        return Agreement(tuple(sorted(self._ready)), tuple(sorted(self._heard.keys() - self._ready)))

    def lapses(self) -> list[float]:
        """Returns the times at which clients that fell silent stop taking part."""
        return [at + self._quiet_s for name, at in self._heard.items() if name not in self._open]

    def _takes_part(self, name: str, heard_at: float, now: float) -> bool:
        return name in self._open or now - heard_at < self._quiet_s
