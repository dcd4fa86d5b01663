from collections.abc import Iterator

import httpx2
import pytest

from ajet_client.outcome import Outcome
from ajet_client.rewardbox import RewardBox


@pytest.fixture
def box() -> Iterator[RewardBox]:
    box = RewardBox()
    yield box
    box.close()


def test_the_last_report_counts(box: RewardBox) -> None:
    url = box.open()
    httpx2.post(url, content="0.25")
    answer = httpx2.post(url, json={"reward": 1, "metrics": {"length": 7}})
    assert (answer.status_code, answer.json()) == (200, {"reward": 1.0, "metrics": {"length": 7.0}})
    assert box.take(url) == Outcome(1.0, {"length": 7.0})


def test_addresses_are_apart_and_cannot_be_guessed(box: RewardBox) -> None:
    first, second = box.open(), box.open()
    httpx2.post(first, content="1")
    assert (box.take(second), box.take(first)) == (None, Outcome(1.0))
    assert len({*first.split("/")} ^ {*second.split("/")}) == 2
    assert len(first.rpartition("/")[2]) >= 32


def test_what_is_no_reward_is_refused_and_counts_for_nothing(box: RewardBox) -> None:
    url = box.open()
    answer = httpx2.post(url, content="good")
    assert answer.status_code == 400
    assert "the body is 'good'" in answer.json()["error"]["message"]
    assert httpx2.post(url, content=b"1" * 65_537).status_code == 400
    assert box.take(url) is None


def test_other_addresses_are_unknown(box: RewardBox) -> None:
    url = box.open()
    box.take(url)
    for address in (url, f"{url}x", url[: url.index("/reward/")]):
        assert httpx2.post(address, content="1").status_code == 404
