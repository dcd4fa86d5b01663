"""Watching a server's events: what to ask for after a break, and for how long to try."""

import logging

from pydantic import ValidationError

from ajet_client.api import Api
from ajet_client.plans import Broken, Pause, Plan, Reply, Request
from ajet_client.retry import Wait
from ajet_core.events import Event, parse_event

logger = logging.getLogger("ajet_client")


class Feed:
    """The place in a stream of events.

    Args:
        api: makes the requests.
        after: id of the last event that is known.
        patience_s: how long to try to reconnect, seconds, counted from the break.
    """

    def __init__(self, api: Api, after: int, patience_s: float) -> None:
        self._api = api
        self._last = after
        self._wait = Wait("watching the events", patience_s, api.clock)
        self._connected = False

    def request(self) -> Request:
        """Returns the request for what comes next."""
        return self._api.events_request(self._last)

    def connected(self) -> None:
        """Notes that the stream is open."""
        self._connected = True

    def take(self, data: str) -> Event | None:
        """Returns the event; None for one that is known already, or of a kind that this version does not know."""
        try:
            event = parse_event(data)
        except ValidationError:
            logger.info("skipped an event of an unknown kind: %.200s", data)
            return None
        if 0 < event.id <= self._last:
            return None
        self._last = max(self._last, event.id)
        return event

    def recover(self, outcome: Reply | Broken) -> Plan[None]:
        """Pauses after a break. Raises `UnavailableError` after the deadline, or what a refusal says."""
        if self._connected:
            self._connected = False
            self._wait.restart()
        yield Pause(self._wait.after(outcome))
