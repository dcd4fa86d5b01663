# ruff: noqa: PT012 - what must raise here are whole `with` blocks
import math
import warnings
from typing import Any

import pytest

from ajet_client import Swarm
from ajet_client.testing import FakeClock, FakeServer
from ajet_core.episode import EpisodeStatus
from ajet_core.errors import (
    ConflictError,
    EpisodeClosedError,
    ForbiddenError,
    KeyRefusedError,
    RewardError,
    StorageError,
    UnavailableError,
)


def test_a_reward_finishes_the_episode_at_the_end_of_the_block(swarm: Swarm, server: FakeServer) -> None:
    with swarm.episode({"q": 1}, kind="eval", task_id="t", group_id="g") as episode:
        episode.reward(0.25, format=1, length=7)
        assert "finish" not in server.requests
        assert (episode.recorded_reward, episode.metrics) == (0.25, {"format": 1.0, "length": 7.0})
        assert (episode.task, episode.kind, episode.group_id) == ({"q": 1}, "eval", "g")
        assert (episode.base_url, episode.model) == (f"{server.url}/v1", "fake")
    seen = server.episodes[0]
    assert (seen.id, seen.status, seen.reward, seen.metrics) == (episode.id, "finished", 0.25, episode.metrics)
    assert (seen.task_id, seen.client_id) == ("t", swarm.client_id)
    assert episode.status is EpisodeStatus.FINISHED
    assert episode.view is not None


def test_the_last_reward_counts(swarm: Swarm, server: FakeServer) -> None:
    with swarm.episode() as episode:
        episode.reward(1, a=1)
        episode.reward(2, b=2)
    assert server.rewards == [2.0]
    assert server.episodes[0].metrics == {"a": 1.0, "b": 2.0}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e7, "1", b"1", None, [1], object()])
def test_what_is_no_reward_is_refused_at_once(swarm: Swarm, server: FakeServer, bad: Any) -> None:
    with swarm.episode() as episode:
        with pytest.raises(RewardError, match=r"^reward must be") as caught:
            episode.reward(bad)
        assert caught.value.field == "reward"
        with pytest.raises(RewardError) as caught:
            episode.reward(1.0, good=1, length=bad)
        assert caught.value.field == "metrics.length"
        assert episode.recorded_reward is None
        episode.reward(0)
    assert server.rewards == [0.0]
    assert server.episodes[0].metrics == {}


def test_metrics_may_have_any_name(swarm: Swarm, server: FakeServer) -> None:
    with swarm.episode() as episode:
        episode.reward(1, value=2, self=3, reward=4)
    assert server.episodes[0].metrics == {"value": 2.0, "self": 3.0, "reward": 4.0}


@pytest.mark.parametrize("error", [ValueError("no answer"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_an_exception_aborts_and_goes_on(swarm: Swarm, server: FakeServer, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, swarm.episode() as episode:
        episode.reward(1.0)
        raise error
    assert caught.value is error
    seen = server.episodes[0]
    assert (seen.status, seen.reward) == ("aborted", None)
    assert seen.reason is not None
    assert seen.reason.startswith(type(error).__name__)
    assert str(error) in seen.reason


def test_a_very_long_reason_is_cut(swarm: Swarm, server: FakeServer) -> None:
    with pytest.raises(ValueError, match="x"), swarm.episode():
        raise ValueError("x" * 10_000)
    assert len(server.episodes[0].reason or "") == 2000


def test_without_a_reward_it_is_aborted_with_a_warning(swarm: Swarm, server: FakeServer) -> None:
    with pytest.warns(RuntimeWarning, match="without a reward") as caught, swarm.episode():
        pass
    assert caught[0].filename == __file__
    assert (server.episodes[0].status, server.episodes[0].reason) == ("aborted", "the episode ended without a reward")


def test_abort(swarm: Swarm, server: FakeServer) -> None:
    with swarm.episode() as episode:
        episode.abort("the sandbox is gone")
        episode.abort("again")
        with pytest.raises(EpisodeClosedError, match="aborted; it takes no reward"):
            episode.reward(1.0)
    assert server.episodes[0].reason == "the sandbox is gone"
    assert server.requests == ["open", "abort"]


def test_an_abort_of_what_the_server_closed_is_no_error(swarm: Swarm, server: FakeServer) -> None:
    with swarm.episode() as episode:
        server.close_episode(episode.id)
        episode.abort("too late")


def test_trouble_with_an_abort_is_a_note_on_the_exception(swarm: Swarm, server: FakeServer, clock: FakeClock) -> None:
    server.fail("abort", "gone fishing", times=1000)
    with pytest.raises(ValueError, match="mine") as caught, swarm.episode():
        raise ValueError("mine")
    assert "gone fishing" in caught.value.__notes__[0]
    assert clock.time <= 15


def test_trouble_with_the_abort_of_an_unrewarded_episode_is_left_at_the_warning(
    swarm: Swarm, server: FakeServer
) -> None:
    server.refuse("abort", StorageError("disk full"))
    with pytest.warns(RuntimeWarning, match="without a reward"), swarm.episode():
        pass


def test_an_opening_whose_answer_was_lost_is_not_opened_twice(swarm: Swarm, server: FakeServer) -> None:
    server.cut("open", times=2)
    with swarm.episode() as episode:
        episode.reward(1)
    assert server.requests.count("open") == 3
    assert [seen.id for seen in server.episodes] == [episode.id]


def test_two_openings_are_two_episodes(swarm: Swarm, server: FakeServer) -> None:
    for _ in range(2):
        with swarm.episode("same") as episode:
            episode.reward(1)
    assert len(server.episodes) == 2


@pytest.mark.parametrize("acted", [True, False])
def test_a_report_whose_answer_was_lost_is_sent_again(swarm: Swarm, server: FakeServer, acted: bool) -> None:
    server.cut("finish", acted=acted)
    with swarm.episode() as episode:
        episode.reward(0.5)
    assert episode.status is EpisodeStatus.FINISHED
    assert server.rewards == [0.5]


def test_an_opening_waits_for_a_busy_server(swarm: Swarm, server: FakeServer, clock: FakeClock) -> None:
    server.fail("open", "updating (step 3)", retry_after_s=20, times=3)
    with swarm.episode() as episode:
        episode.reward(1)
    assert 60 <= clock.time <= 63


def test_an_opening_gives_up_at_its_deadline(swarm: Swarm, server: FakeServer, clock: FakeClock) -> None:
    server.fail("open", "updating (step 3)", retry_after_s=20, times=100)
    message = r"^gave up after \d+ s opening an episode: updating \(step 3\)$"
    with pytest.raises(UnavailableError, match=message), swarm.episode(wait=600.0):
        pass
    assert 560 < clock.time <= 600


@pytest.mark.parametrize("error", [KeyRefusedError("unknown token"), ForbiddenError("an agent's key")], ids=repr)
def test_a_refused_key_is_not_tried_again(swarm: Swarm, server: FakeServer, error: Exception) -> None:
    server.refuse("open", error)  # type: ignore[arg-type]
    with pytest.raises(type(error)), swarm.episode():
        pass
    assert server.requests == ["open"]


def test_an_episode_that_the_server_closed_takes_no_reward(swarm: Swarm, server: FakeServer) -> None:
    with (
        pytest.raises(EpisodeClosedError, match=r"the server has closed episode .*its lease ended"),
        swarm.episode() as e,
    ):
        e.reward(1)
        server.close_episode(e.id)
    assert e.status is EpisodeStatus.EXPIRED
    assert server.rewards == []


def test_a_report_that_the_server_will_not_take_gives_the_slot_back(swarm: Swarm, server: FakeServer) -> None:
    server.refuse("finish", ConflictError("it made no call"))
    with pytest.raises(ConflictError, match="no call"), swarm.episode() as episode:
        episode.reward(1)
    assert (server.episodes[0].status, server.episodes[0].reason) == ("aborted", "ConflictError: it made no call")


def test_the_report_has_patience_of_its_own(server: FakeServer, clock: FakeClock) -> None:
    server.fail("finish", "restarting", retry_after_s=10, times=20)
    swarm = Swarm(server.url, transport=server.transport(), clock=clock, timeout=1, report_timeout=300)
    with swarm, swarm.episode() as episode:
        episode.reward(1)
    assert server.rewards == [1.0]


def test_keys_are_not_shown(swarm: Swarm) -> None:
    with swarm.episode() as episode:
        assert episode.api_key not in repr(episode)
        assert "control" not in repr(episode)
        episode.reward(1)


def test_no_warning_when_all_is_well(swarm: Swarm) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with swarm.episode() as episode:
            episode.reward(1)
