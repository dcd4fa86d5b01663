"""When to try again, for how long, and what to say at the end.

Transient are failed connections and the statuses 429, 502, 503 and 504. 500 is not: it is how a server reports a
failed engine or a data folder it cannot use, and no retry heals those. Every request of this package is idempotent
(the server recognises a repeated opening, finish or abort), so a request whose answer was lost is simply sent again.

Pauses double from 0.5 s to 10 s, each shortened at random to between half and all of it. A `Retry-After` in seconds
is honoured and lengthened at random by at most 1 s, so that a swarm of clients does not return at the same instant.
(`Retry-After` as a date is ignored.) Everything happens under one deadline, and the error at the end names its cause.
"""

import json
import logging
import math
from collections.abc import Callable

from ajet_client.clock import Clock
from ajet_client.plans import Broken, Pause, Plan, Reply, Request, ask
from ajet_core.errors import AjetError, UnavailableError, from_wire

TRANSIENT = frozenset({429, 502, 503, 504})

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0
_PATIENT_S = 30.0
"""A wait longer than this is told as a warning."""

logger = logging.getLogger("ajet_client")


class Wait:
    """The state of one call that may have to be repeated: when it began, how often it failed."""

    def __init__(self, doing: str, patience_s: float, clock: Clock) -> None:
        self._doing = doing
        self._patience_s = patience_s
        self._clock = clock
        self._told: tuple[int, str] | None = None
        self.restart()

    def restart(self) -> None:
        """Begins anew: the deadline is `patience_s` from now."""
        self._began = self._clock.now()
        self._failures = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return self._clock.now() - self._began

    @property
    def left_s(self) -> float:
        """Seconds until the deadline, at least 0."""
        return max(0.0, self._patience_s - self.elapsed_s)

    def after(self, outcome: Reply | Broken) -> float:
        """Returns the seconds to pause before the next try.

        Raises:
            UnavailableError: the deadline has passed, or the server asks for more time than is left.
            AjetError: what the reply says, if it is not transient.
        """
        error = failure(outcome)
        if isinstance(outcome, Reply) and outcome.status not in TRANSIENT:
            raise error
        self._failures += 1
        asked_s = error.retry_after_s or 0.0
        if self.left_s <= 0 or asked_s > self.left_s:
            raise self._gave_up(error) from error
        self._tell(error, isinstance(outcome, Broken))
        return min(self._pause_s(error.retry_after_s), self.left_s)

    def _pause_s(self, asked_s: float | None) -> float:
        grown = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self._failures - 1, 10))
        if asked_s is None:
            return grown * (0.5 + 0.5 * self._clock.jitter())
        return asked_s + min(1.0, grown) * self._clock.jitter()

    def _gave_up(self, error: AjetError) -> UnavailableError:
        return UnavailableError(
            f"gave up after {self.elapsed_s:.0f} s {self._doing}: {error.message}", retry_after_s=error.retry_after_s
        )

    def _tell(self, error: AjetError, broken: bool) -> None:
        """Logs each cause of waiting once: a lost connection as a warning, a busy server only when it lasts."""
        level = logging.WARNING if broken or self.elapsed_s > _PATIENT_S else logging.INFO
        if self._told != (level, error.message):
            self._told = (level, error.message)
            logger.log(level, "%s: waiting, up to %.0f s more: %s", self._doing, self.left_s, error.message)


def persist(doing: str, make: Callable[[float], Request], patience_s: float, clock: Clock) -> Plan[Reply]:
    """Sends a request until it is answered with a 2xx.

    Args:
        doing: what for, as a participle ("opening an episode"); it appears in errors and logs.
        make: builds the request, given the seconds that are left.
        patience_s: seconds after which to give up. The first try is made in any case.
        clock: tells the time.

    Raises:
        UnavailableError: gave up; the message has the last cause.
        AjetError: the server refused, and a retry cannot help.
    """
    wait = Wait(doing, patience_s, clock)
    while True:
        outcome = yield from ask(make(wait.left_s))
        if isinstance(outcome, Reply) and outcome.ok:
            return outcome
        yield Pause(wait.after(outcome))


def once(request: Request) -> Plan[Reply]:
    """Sends a request once. Raises the `AjetError` that the answer, or its absence, means."""
    outcome = yield from ask(request)
    if isinstance(outcome, Reply) and outcome.ok:
        return outcome
    raise failure(outcome)


def failure(outcome: Reply | Broken) -> AjetError:
    """Returns the error that a refusal or a broken connection means. Its `retry_after_s` is the header's, if any."""
    if isinstance(outcome, Broken):
        return UnavailableError(outcome.reason)
    error = from_wire(outcome.status, _json(outcome.body))
    error.retry_after_s = _seconds(outcome.headers.get("retry-after"), default=error.retry_after_s)
    return error


def _json(body: bytes) -> object:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")


def _seconds(text: str | None, default: float | None) -> float | None:
    try:
        seconds = float(text or "")
    except ValueError:
        return default
    return seconds if math.isfinite(seconds) and seconds >= 0 else default
