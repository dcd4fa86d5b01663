"""Whoever has the fewest open episodes is next."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.episode import EpisodeKind
from ajet_core.errors import ConflictError, UnavailableError
from ajet_core.wire import OpenEpisode
from ajet_server.capture.records import EpisodeRecord
from ajet_server.episodes.line import Line, Ticket


class Slots:
    """A bounded number of slots, and who holds them."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.held: Counter[tuple[str, EpisodeKind]] = Counter()
        self.order: list[str] = []
        self.line = Line(self._copy)

    def _copy(self) -> Counter[tuple[str, EpisodeKind]]:
        return self.held.copy()

    def ticket(self, client: str) -> Ticket:
        body = OpenEpisode(request_id="r", client_id=client)
        ticket = Ticket(body, lambda: self._reserve(client))
        self.line.enter(ticket)
        return ticket

    def _reserve(self, client: str) -> EpisodeRecord:
        if not self.free:
            raise UnavailableError("full")
        self.free -= 1
        self.held[client, EpisodeKind.TRAIN] += 1
        self.order.append(client)
        return EpisodeRecord("e", "a", "r", "g", False, "t", "", EpisodeKind.TRAIN, client, "k", "c", 0, 0.0)


def test_the_client_with_the_fewest_is_next() -> None:
    slots = Slots(0)
    slots.held = Counter({("a", EpisodeKind.TRAIN): 2})
    tickets = [slots.ticket(client) for client in "aaabbc"]
    slots.free = 5
    slots.line.look(tickets[0], 1)
    assert slots.order == ["b", "c", "b", "a", "a"], "equally many: who waits longest"
    assert [ticket.record is not None for ticket in tickets] == [True, True, False, True, True, True]
    assert isinstance(tickets[2].error, UnavailableError)


def test_without_a_change_only_who_asks_is_looked_at() -> None:
    slots = Slots(0)
    first, second = slots.ticket("a"), slots.ticket("b")
    slots.line.look(first, 1)
    slots.free = 2  # by time alone
    slots.line.look(second, 1)
    assert (first.record, slots.order) == (None, ["b"])
    slots.line.look(second, 1)
    assert slots.order == ["b"], "once"


def test_what_cannot_be_does_not_wait() -> None:
    def refuse() -> EpisodeRecord:
        raise ConflictError("the group is full")

    slots = Slots(1)
    ticket = Ticket(OpenEpisode(request_id="r"), refuse)
    slots.line.enter(ticket)
    slots.line.look(ticket, 1)
    assert isinstance(ticket.error, ConflictError)
    assert not ticket.waits
    slots.line.leave(ticket)
    with pytest.raises(KeyError):
        slots.line.leave(ticket)


@given(st.lists(st.sampled_from("abcd"), max_size=40), st.lists(st.integers(0, 5), max_size=12))
def test_nobody_is_ahead_by_two_while_another_waits(clients: list[str], freed: list[int]) -> None:
    slots = Slots(0)
    tickets = [slots.ticket(client) for client in clients]
    for change, count in enumerate(freed):
        slots.free += count
        if tickets:
            slots.line.look(tickets[0], change)
    waiting = {ticket.body.client_id for ticket in tickets if ticket.waits}
    counts = {client: slots.held[client, EpisodeKind.TRAIN] for client in "abcd"}
    assert all(counts[other] <= counts[client] + 1 for client in waiting for other in counts)
    assert not (waiting and freed and slots.free)
