"""Opens one episode on each of several servers, or none."""

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import JsonValue

from ajet_client.api import Api
from ajet_client.clock import Clock
from ajet_client.episode import EpisodeBase
from ajet_client.plans import Plan
from ajet_client.steps import Step, Steps
from ajet_core.errors import AjetError, UnavailableError
from ajet_core.wire import EpisodeGrant

E = TypeVar("E", bound=EpisodeBase)

_HOLD_S = 10.0
"""How long episodes that are open already wait for those that are not, seconds; then they are given back."""

logger = logging.getLogger("ajet_client")


@dataclass(frozen=True, slots=True)
class Seat:
    """What to open on one server; the fields are those of `Api.opening`."""

    api: Api
    task: JsonValue
    kind: str
    task_id: str | None
    group_id: str | None
    weights: int | None
    source: str | None

    def open(self, patience_s: float) -> Plan[EpisodeGrant]:
        """Opens it."""
        want = self.api.opening(
            task=self.task,
            kind=self.kind,
            task_id=self.task_id,
            group_id=self.group_id,
            weights=self.weights,
            source=self.source,
        )
        return self.api.open(want, patience_s)


def seats_of(
    apis: Sequence[Api],
    urls: Sequence[str],
    tasks: Sequence[JsonValue],
    *,
    kind: str,
    task_id: str | None,
    group_id: str | None,
    weights: int | None,
    source: str | None,
) -> list[Seat]:
    """Returns what to open. On a server that is there twice, each episode has a task id and a group of its own."""
    found: list[Seat] = []
    for number, (api, url, task) in enumerate(zip(apis, urls, tasks, strict=True)):
        own = f"-{urls[:number].count(url)}" if urls.count(url) > 1 else ""
        name = task_id or (_digest(task) if own else None)
        found.append(Seat(api, task, kind, name and name + own, group_id and group_id + own, weights, source))
    return found


def _digest(task: JsonValue) -> str:
    return f"task_{hashlib.sha256(json.dumps(task, sort_keys=True).encode()).hexdigest()[:16]}"


def opening(
    seats: Sequence[Seat],
    take: Callable[[int, EpisodeGrant, JsonValue], E],
    drop: Callable[[int, E], object],
    wait_s: float,
    clock: Clock,
) -> Steps[list[E]]:
    """Opens all the seats, or none.

    Whoever holds some and waits for others might wait for a client that does the same the other way round. So open
    episodes are given back after a while, and the next round begins with the server that was busy.

    Args:
        seats: what to open.
        take: makes an episode of a grant, and keeps its lease.
        drop: ends that.
        wait_s: how long to wait in all, seconds.
        clock: tells the time.

    Raises:
        UnavailableError: not all could be opened after `wait_s` seconds.
    """
    end, order = clock.now() + wait_s, list(range(len(seats)))
    while True:
        number = order[0]
        held: dict[int, E] = {}
        try:
            for number in order:
                left_s = max(0.0, end - clock.now())
                patience_s = min(left_s, _HOLD_S * (0.5 + clock.jitter())) if held else left_s
                seat = seats[number]
                grant = yield Step(number, seat.open(patience_s), stoppable=True)
                held[number] = take(number, grant, seat.task)
            return [held[number] for number in range(len(seats))]
        except UnavailableError:
            yield from _give_back(held, drop, "another server of the team hands out no episode now")
            if not held or clock.now() >= end:
                raise
            order = [number, *(other for other in order if other != number)]
        except BaseException as error:
            yield from _give_back(held, drop, f"the team could not be opened: {type(error).__name__}")
            raise


def _give_back(held: dict[int, E], drop: Callable[[int, E], object], reason: str) -> Steps[None]:
    for number, episode in held.items():
        drop(number, episode)
        try:
            yield Step(number, episode.give_up(reason))
        except AjetError as trouble:
            logger.info("%r could not be aborted and will expire: %s", episode, trouble)
