"""Openings that wait: whoever has the fewest open episodes gets the next free slot.

So a client with a thousand waiting openings does not keep another one waiting. Of clients that have equally many, the
one that has waited longest comes first; a client's own openings go in their order.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ajet_core.episode import EpisodeKind
from ajet_core.errors import AjetError, UnavailableError
from ajet_core.wire import OpenEpisode
from ajet_server.capture.records import EpisodeRecord

Owner = tuple[str, EpisodeKind]
"""A client, and the kind of its episodes: those for training and evaluations do not compete."""


@dataclass(slots=True, eq=False)
class Ticket:
    """An opening that waits.

    Attributes:
        body: what is asked for.
        reserve: takes a slot at once, or raises why not.
        record: the episode that it got a slot for.
        error: why it did not get one when it was looked at last. It waits on after an `UnavailableError` only.
    """

    body: OpenEpisode
    reserve: Callable[[], EpisodeRecord]
    record: EpisodeRecord | None = None
    error: AjetError | None = None

    @property
    def waits(self) -> bool:
        """Whether it may still get a slot."""
        return self.record is None and (self.error is None or isinstance(self.error, UnavailableError))

    def try_now(self) -> bool:
        """Takes a slot if there is one."""
        try:
            self.record, self.error = self.reserve(), None
        except AjetError as error:
            self.error = error
        return self.record is not None


class Line:
    """Everybody who waits. Synchronous: while it looks, nothing changes.

    Args:
        held: how many open episodes each client has.
    """

    def __init__(self, held: Callable[[], Counter[Owner]]) -> None:
        self._held = held
        self._tickets: dict[Ticket, None] = {}
        self._seen = -1

    def enter(self, ticket: Ticket) -> None:
        """Puts an opening at the end. It is looked at once at least."""
        self._tickets[ticket] = None

    def leave(self, ticket: Ticket) -> None:
        """Takes an opening out."""
        del self._tickets[ticket]

    def look(self, ticket: Ticket, changes: int) -> None:
        """Gives the free slots away: to all that wait when something has changed since the last time, else to this one.

        Args:
            ticket: who asks.
            changes: how many changes there were.
        """
        if changes != self._seen:
            self._seen = changes
            self._give(one for one in self._tickets if one.waits)
        elif ticket.waits:
            ticket.try_now()

    def _give(self, waiting: Iterable[Ticket]) -> None:
        held, queues = self._held(), dict[Owner, deque[Ticket]]()
        for ticket in waiting:
            queues.setdefault((ticket.body.client_id, ticket.body.kind), deque()).append(ticket)
        while queues:
            owner = min(queues, key=lambda owner: held[owner])  # the first of equals: it has waited longest
            held[owner] += queues[owner].popleft().try_now()
            if not queues[owner]:
                del queues[owner]
