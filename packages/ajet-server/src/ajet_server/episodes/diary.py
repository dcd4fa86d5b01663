"""What the janitor did, so that it can be asked: counts since the job was taken, and its latest actions with reasons.

The facts themselves are in the ledger: an expired episode has its reason and an event, an episode that was set aside or
whose contents were dropped is marked so.
"""

import time
from collections import deque

from ajet_core.status import JanitorAction, JanitorDeed, JanitorView

_KEPT = 100


class Diary:
    """Counts everything, and remembers the latest actions."""

    def __init__(self) -> None:
        self._actions: deque[JanitorAction] = deque(maxlen=_KEPT)
        self._counts = dict.fromkeys(JanitorDeed, 0)
        self._rounds = 0
        self._round_at: float | None = None

    def note(self, deed: JanitorDeed, reason: str, episode_id: str | None = None, episodes: int = 1) -> None:
        """Writes down what was done, to one episode or to several together."""
        self._counts[deed] += episodes
        self._actions.append(JanitorAction(at=time.time(), deed=deed, episode_id=episode_id, reason=reason))

    def round_done(self) -> None:
        """The janitor looked at everything."""
        self._rounds += 1
        self._round_at = time.time()

    def view(self) -> JanitorView:
        """Returns what there is to tell, the latest action first."""
        return JanitorView(
            rounds=self._rounds,
            last_round_at=self._round_at,
            expired=self._counts[JanitorDeed.EXPIRED],
            set_aside=self._counts[JanitorDeed.SET_ASIDE],
            dropped=self._counts[JanitorDeed.DROPPED],
            failed=self._counts[JanitorDeed.FAILED],
            actions=list(reversed(self._actions)),
        )
