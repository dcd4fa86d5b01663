import pytest

from ajet_core.config import BatchConfig
from ajet_core.errors import ConflictError, UnavailableError
from ajet_server.capture.records import PoolRow
from ajet_server.episodes.pool import Pool

CONFIG = BatchConfig(policy="groups", size=2, group_size=2)


class _Clock:
    """Monotonic time that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr("ajet_server.episodes.pool.time", clock)
    return clock


def _finish(pool: Pool, group: str, episode: str, *, named: bool, task: str = "t") -> None:
    pool.finish(PoolRow(episode, group, named, task, 1.0, 0))


def test_the_server_fills_a_group_of_the_task_first() -> None:
    pool = Pool(CONFIG, quiet_s=100)
    first = pool.join(None, "t", "e1")
    assert pool.join(None, "t", "e2") == first
    assert pool.join(None, "t", "e3") != first


def test_a_freed_slot_is_refilled_before_a_group_is_begun() -> None:
    pool = Pool(CONFIG, quiet_s=100)
    group = pool.join(None, "t", "e1")
    pool.join(None, "t", "e2")
    pool.leave(group, "e1")
    assert pool.join(None, "t", "e3") == group


def test_no_more_groups_than_the_next_batch_wants(clock: _Clock) -> None:
    pool = Pool(CONFIG, quiet_s=100)
    pool.join("a", "t1", "e1")
    pool.join("b", "t2", "e2")
    with pytest.raises(UnavailableError, match="2 of 2"):
        pool.join("c", "t3", "e3")


def test_a_client_that_starts_again_need_not_wait_for_the_groups_it_left_behind(clock: _Clock) -> None:
    pool = Pool(CONFIG, quiet_s=100)
    for group in ("a", "b"):
        pool.join(group, "t", f"{group}1")
        pool.join(group, "t", f"{group}2")
        _finish(pool, group, f"{group}1", named=True)
        pool.leave(group, f"{group}2")  # aborted at Ctrl-C
    assert pool.join("new", "t", "e1") == "new"


def test_a_group_of_the_servers_waits_a_moment_for_its_next_rollout(clock: _Clock) -> None:
    pool = Pool(CONFIG, quiet_s=100)
    for task in ("t1", "t2"):
        group = pool.join(None, task, f"{task}-e")
        _finish(pool, group, f"{task}-e", named=False, task=task)
    with pytest.raises(UnavailableError):
        pool.join(None, "t3", "e3")
    clock.now += 10
    pool.join(None, "t3", "e3")


def test_a_named_group_that_was_left_for_a_lease_is_filled_by_whoever_has_its_task(clock: _Clock) -> None:
    pool = Pool(CONFIG, quiet_s=100)
    pool.join("left", "t", "e1")
    _finish(pool, "left", "e1", named=True)
    clock.now += 99
    own = pool.join(None, "t", "e2")
    assert own != "left"
    pool.leave(own, "e2")
    clock.now += 1
    assert pool.join(None, "t", "e3") == "left"


def test_a_named_group_is_of_one_task_and_one_size() -> None:
    pool = Pool(CONFIG, quiet_s=100)
    pool.join("a", "t", "e1")
    with pytest.raises(ConflictError, match="belongs to task 't'"):
        pool.join("a", "other", "e2")
    pool.join("a", "t", "e2")
    with pytest.raises(ConflictError, match="has all its 2 episodes"):
        pool.join("a", "t", "e3")


def test_at_the_bound_nobody_gets_an_episode_and_none_is_lost() -> None:
    pool = Pool(BatchConfig(policy="episodes", size=2, group_size=2, max_pool_episodes=2), quiet_s=100)
    for number in range(2):
        _finish(pool, f"g{number}", f"e{number}", named=True)
    with pytest.raises(UnavailableError, match=r"batch\.max_pool_episodes"):
        pool.join(None, "t", "e9")
    assert len(pool.rows) == 2
