import pytest

from ajet_client.api import Api
from ajet_client.feed import Feed
from ajet_client.plans import Broken
from ajet_client.testing import FakeClock
from ajet_core.errors import UnavailableError
from ajet_core.events import EngineState, StateChanged, UpdateProgress


@pytest.fixture
def feed(clock: FakeClock) -> Feed:
    return Feed(Api("secret", None, 1.0, 1.0, clock), 5, 60.0)


def data(number: int) -> str:
    return StateChanged(id=number, state=EngineState.ROLLING, cause="", step=0, weight_version=0).model_dump_json()


def test_a_request_resumes_after_the_last_event(feed: Feed) -> None:
    assert feed.request().path == "/api/events?after=5"
    assert feed.take(data(9)) is not None
    request = feed.request()
    assert (request.path, request.headers["Last-Event-ID"], request.key) == ("/api/events?after=9", "9", "secret")


@pytest.mark.parametrize("text", ["{}", "no json", '{"type": "of_the_future", "id": 6}', data(5), data(3)])
def test_what_is_unknown_or_known_already_is_skipped(feed: Feed, text: str) -> None:
    assert feed.take(text) is None
    assert feed.request().path == "/api/events?after=5"


def test_an_event_without_a_number_is_shown_and_does_not_move_the_place(feed: Feed) -> None:
    assert feed.take(UpdateProgress(step=1, stage="pack", done=1, total=2).model_dump_json()) is not None
    assert feed.request().path == "/api/events?after=5"


def test_the_deadline_counts_from_the_break_however_long_nothing_happened(feed: Feed, clock: FakeClock) -> None:
    feed.connected()
    clock.time = 10_000.0
    next(feed.recover(Broken("cut")))
    clock.time += 59.0
    next(feed.recover(Broken("cut")))
    feed.connected()
    clock.time += 59.0
    next(feed.recover(Broken("cut")))
    clock.time += 60.0
    with pytest.raises(UnavailableError):
        next(feed.recover(Broken("cut")))
