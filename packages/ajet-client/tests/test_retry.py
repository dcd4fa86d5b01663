import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_client.clock import Clock
from ajet_client.plans import Broken, Pause, Plan, Reply, Request
from ajet_client.retry import TRANSIENT, Wait, failure, once, persist
from ajet_client.testing import FakeClock
from ajet_core.errors import AjetError, KeyRefusedError, NotFoundError, UnavailableError, to_wire

REQUEST = Request("GET", "/x")
OK = Reply(200, b"{}")


def drive(plan: Plan[Reply], outcomes: Iterator[Reply | Broken], clock: FakeClock) -> Reply:
    step = next(plan)
    while True:
        try:
            step = plan.send(clock.sleep(step.seconds) if isinstance(step, Pause) else next(outcomes))
        except StopIteration as end:
            return end.value


def attempt(outcomes: list[Reply | Broken], clock: FakeClock, patience_s: float = 100.0) -> Reply:
    return drive(persist("trying", lambda left: REQUEST, patience_s, clock), iter(outcomes), clock)


def refusal(error: AjetError, **headers: str) -> Reply:
    return Reply(
        error.status, json.dumps(to_wire(error)).encode(), {k.replace("_", "-"): v for k, v in headers.items()}
    )


@pytest.mark.parametrize("outcome", [Broken("cut"), *(Reply(status) for status in sorted(TRANSIENT))], ids=repr)
def test_what_is_transient_is_tried_again(outcome: Reply | Broken, clock: FakeClock) -> None:
    assert attempt([outcome, outcome, OK], clock) is OK
    assert len(clock.sleeps) == 2


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 405, 409, 413, 422, 500, 501])
def test_what_is_not_transient_is_raised_at_once(status: int, clock: FakeClock) -> None:
    with pytest.raises(AjetError, match=f"HTTP {status}"):
        attempt([Reply(status, b"no")], clock)
    assert clock.sleeps == []


def test_an_error_keeps_its_class_and_field(clock: FakeClock) -> None:
    with pytest.raises(KeyRefusedError, match="wrong") as caught:
        attempt([refusal(KeyRefusedError("wrong", field="key"))], clock)
    assert caught.value.field == "key"


def test_pauses_grow_to_a_bound(clock: FakeClock) -> None:
    attempt([Broken("cut")] * 8 + [OK], clock)
    assert clock.sleeps == pytest.approx([0.75 * pause for pause in (0.5, 1, 2, 4, 8, 10, 10, 10)])


@pytest.mark.parametrize(("header", "body_s", "least"), [("7", None, 7), (None, 5.0, 5), ("7", 5.0, 7), ("0", 5.0, 0)])
def test_retry_after_is_honoured(header: str | None, body_s: float | None, least: float, clock: FakeClock) -> None:
    headers = {} if header is None else {"retry_after": header}
    attempt([refusal(UnavailableError("busy", retry_after_s=body_s), **headers), OK], clock)
    assert least < clock.sleeps[0] <= least + 1


@pytest.mark.parametrize("header", ["soon", "nan", "inf", "-1", "", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_a_retry_after_that_cannot_be_is_ignored(header: str, clock: FakeClock) -> None:
    assert failure(Reply(503, b"", {"retry-after": header})).retry_after_s is None


def test_at_the_deadline_the_last_cause_is_named(clock: FakeClock) -> None:
    busy = refusal(UnavailableError("the server is updating (step 3)", retry_after_s=1))
    with pytest.raises(
        UnavailableError, match=r"^gave up after 60 s trying: the server is updating \(step 3\)$"
    ) as caught:
        attempt([Broken("cut")] + [busy] * 100, clock, patience_s=60.0)
    assert isinstance(caught.value.__cause__, UnavailableError)
    assert clock.time == pytest.approx(60.0)


def test_more_time_than_is_left_is_not_waited_for(clock: FakeClock) -> None:
    with pytest.raises(UnavailableError, match="gave up after 0 s"):
        attempt([refusal(UnavailableError("busy", retry_after_s=1000))], clock, patience_s=60.0)
    assert clock.sleeps == []


def test_without_patience_there_is_still_one_try(clock: FakeClock) -> None:
    assert attempt([OK], clock, patience_s=0.0) is OK


def test_the_request_learns_how_much_time_is_left(clock: FakeClock) -> None:
    left: list[float] = []

    def make(seconds: float) -> Request:
        left.append(seconds)
        return REQUEST

    drive(persist("trying", make, 10.0, clock), iter([Broken("cut"), OK]), clock)
    assert left == pytest.approx([10.0, 10.0 - 0.375])


@given(
    patience_s=st.floats(0, 1000),
    outcomes=st.lists(st.sampled_from([Broken("cut"), Reply(503, b"", {"retry-after": "3"}), Reply(429)]), min_size=1),
    jitter=st.floats(0, 1, exclude_max=True),
)
def test_no_wait_outlasts_its_deadline(patience_s: float, outcomes: list[Reply | Broken], jitter: float) -> None:
    clock = FakeClock()
    clock.jitter = lambda: jitter
    endless: Any = (outcomes[number % len(outcomes)] for number in range(10**6))
    with pytest.raises(UnavailableError):
        drive(persist("trying", lambda left: REQUEST, patience_s, clock), endless, clock)
    assert clock.time <= patience_s + 1e-6
    assert all(pause >= 0 for pause in clock.sleeps)


def test_once_is_once(clock: FakeClock) -> None:
    with pytest.raises(UnavailableError, match="cut"):
        drive(once(REQUEST), iter([Broken("cut")]), clock)
    with pytest.raises(NotFoundError):
        drive(once(REQUEST), iter([refusal(NotFoundError("gone"))]), clock)


def test_a_lost_connection_is_told_at_once_a_busy_server_later(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    busy = refusal(UnavailableError("updating", retry_after_s=10))
    with caplog.at_level(logging.INFO, "ajet_client"):
        attempt([Broken("no route")] * 3 + [busy] * 5 + [OK], clock)
    told = [(record.levelname, record.message.split(": ")[-1]) for record in caplog.records]
    assert told == [("WARNING", "no route"), ("INFO", "updating"), ("WARNING", "updating")]


def test_restart_sets_the_deadline_anew(clock: FakeClock) -> None:
    wait = Wait("watching", 10.0, clock)
    clock.time = 9.0
    wait.restart()
    assert wait.left_s == 10.0


def test_the_real_clock_can_be_woken() -> None:
    import threading

    stop = threading.Event()
    stop.set()
    clock = Clock()
    began = clock.now()
    clock.sleep(60.0, stop)
    clock.sleep(0.0)
    assert clock.now() - began < 10
    assert 0 <= clock.jitter() < 1
