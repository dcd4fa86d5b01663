import time

import pytest

from ajet_core.config import BatchConfig
from ajet_core.errors import ConflictError, RequestError, UnavailableError
from ajet_server.capture.records import PoolRow
from ajet_server.episodes.pool import Pool

CONFIG = BatchConfig(policy="groups", size=2, group_size=2)


class _Clock:
    """Monotonic time that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return time.time()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr("ajet_server.episodes.pool.time", clock)
    return clock


def _finish(pool: Pool, group: str, episode: str, *, named: bool, task: str = "t", client: str = "c") -> None:
    pool.finish(PoolRow(episode, group, named, task, 1.0, 0, client, time.time()))


def test_the_server_fills_a_group_of_the_task_first() -> None:
    pool = Pool(CONFIG, quiet_s=100)
    first = pool.join(None, "t", "e1", "c")
    assert pool.join(None, "t", "e2", "c") == first
    assert pool.join(None, "t", "e3", "c") != first


def test_a_freed_slot_is_refilled_before_a_group_is_begun() -> None:
    pool = Pool(CONFIG, quiet_s=100)
    group = pool.join(None, "t", "e1", "c")
    pool.join(None, "t", "e2", "c")
    pool.leave(group, "e1")
    assert pool.join(None, "t", "e3", "c") == group


def test_no_more_groups_than_the_next_batch_wants(clock: _Clock) -> None:
    pool = Pool(CONFIG, quiet_s=100)
    pool.join("a", "t1", "e1", "c")
    pool.join("b", "t2", "e2", "c")
    with pytest.raises(UnavailableError, match="2 of 2"):
        pool.join("c", "t3", "e3", "c")


def test_a_client_that_starts_again_need_not_wait_for_the_groups_it_left_behind(clock: _Clock) -> None:
    pool = Pool(CONFIG, quiet_s=100)
    for group in ("a", "b"):
        pool.join(group, "t", f"{group}1", "c")
        pool.join(group, "t", f"{group}2", "c")
        _finish(pool, group, f"{group}1", named=True)
        pool.leave(group, f"{group}2")  # aborted at Ctrl-C
    assert pool.join("new", "t", "e1", "c") == "new"


def test_a_group_of_the_servers_waits_a_moment_for_its_next_rollout(clock: _Clock) -> None:
    pool = Pool(CONFIG, quiet_s=100)
    for task in ("t1", "t2"):
        group = pool.join(None, task, f"{task}-e", "c")
        _finish(pool, group, f"{task}-e", named=False, task=task)
    with pytest.raises(UnavailableError):
        pool.join(None, "t3", "e3", "c")
    clock.now += 10
    pool.join(None, "t3", "e3", "c")


def test_a_named_group_that_was_left_for_a_lease_is_filled_by_whoever_has_its_task(clock: _Clock) -> None:
    pool = Pool(CONFIG, quiet_s=100)
    pool.join("left", "t", "e1", "c")
    _finish(pool, "left", "e1", named=True)
    clock.now += 99
    own = pool.join(None, "t", "e2", "c")
    assert own != "left"
    pool.leave(own, "e2")
    clock.now += 1
    assert pool.join(None, "t", "e3", "c") == "left"


def test_a_named_group_is_of_one_task_and_one_size() -> None:
    pool = Pool(CONFIG, quiet_s=100)
    pool.join("a", "t", "e1", "c")
    with pytest.raises(ConflictError, match="belongs to task 't'"):
        pool.join("a", "other", "e2", "c")
    pool.join("a", "t", "e2", "c")
    with pytest.raises(ConflictError, match="has all its 2 episodes"):
        pool.join("a", "t", "e3", "c")


def test_at_the_bound_nobody_gets_an_episode_and_none_is_lost() -> None:
    pool = Pool(BatchConfig(policy="episodes", size=2, group_size=2, max_pool_episodes=2), quiet_s=100)
    for number in range(2):
        _finish(pool, f"g{number}", f"e{number}", named=True)
    with pytest.raises(UnavailableError, match=r"batch\.max_pool_episodes"):
        pool.join(None, "t", "e9", "c")
    assert len(pool.rows) == 2


def test_without_a_bound_groups_are_handed_out_as_clients_like() -> None:
    pool = Pool(BatchConfig(policy="any_client", group_size=2), quiet_s=100)
    assert len({pool.join(f"g{number}", "t", f"e{number}", "c") for number in range(50)}) == 50


def test_every_client_at_work_is_asked(clock: _Clock) -> None:
    pool = Pool(BatchConfig(policy="all_clients", group_size=1), quiet_s=100)
    for client in ("a", "b"):
        pool.join(client, "t", f"e-{client}", client)
    _finish(pool, "a", "e-a", named=True, client="a")
    pool.say("a", True, time.time())
    assert pool.decision().waiting_for == "1 of 2 clients ready; not ready: b"
    clock.now += 1000  # an open episode keeps its client, however long it takes
    assert not pool.decision().ready
    pool.leave("b", "e-b")
    clock.now += 99
    assert not pool.decision().ready, "it may be between two tasks"
    clock.now += 1
    assert pool.decision().take == ("e-a",), "nobody waits for a client that is gone"


def test_what_clients_said_holds_until_an_update_begins() -> None:
    pool = Pool(BatchConfig(policy="any_client", group_size=1), quiet_s=100)
    _finish(pool, "a", "e1", named=True)
    pool.say("c", True, time.time())
    pool.say("c", False, time.time())
    assert not pool.decision().ready
    pool.say("c", True, time.time())
    assert pool.decision().ready
    pool.begin_update()
    pool.say("late", True, time.time())  # while the batch is written
    pool.take(("e1",))
    _finish(pool, "b", "e2", named=True)
    assert pool.agreement().ready == ("late",)
    assert pool.decision().ready


def test_the_time_before_a_restart_counts(clock: _Clock) -> None:
    pool = Pool(BatchConfig(group_size=1, when="waited > 10m"), quiet_s=100)
    pool.finish(PoolRow("e", "g", True, "t", 1.0, 0, "c", time.time() - 599))
    assert not pool.decision().ready
    clock.now += 2
    assert pool.decision().ready


def test_a_clock_that_was_set_back_makes_nobody_wait_longer(clock: _Clock) -> None:
    pool = Pool(BatchConfig(group_size=1, when="waited > 10m"), quiet_s=100)
    pool.finish(PoolRow("e", "g", True, "t", 1.0, 0, "c", time.time() + 10_000))
    clock.now += 601
    assert pool.decision().ready


def test_uninformative_groups_that_were_set_aside_are_still_told_of() -> None:
    pool = Pool(BatchConfig(policy="informative_groups", size=1, group_size=2), quiet_s=100)
    for name in ("e1", "e2"):
        _finish(pool, "g", name, named=True)
    pool.set_aside(pool.unusable())
    assert not pool.rows
    assert pool.decision().waiting_for == "0 of 1 informative groups (1 group complete): all rewards are 1"
    pool.take(())
    assert pool.decision().waiting_for == "0 of 1 informative groups (0 groups complete)", "an update begins anew"


MIX = BatchConfig(policy="groups", size=4, group_size=1, sources={"math": 0.75, "tools": 0.25})


def _add(pool: Pool, name: str, source: str | None) -> None:
    group = pool.join(None, name, name, "c", source)
    pool.finish(PoolRow(name, group, False, name, 1.0, 0, "c", time.time(), source))


def test_a_source_that_has_its_share_under_way_gets_no_more() -> None:
    pool = Pool(MIX, quiet_s=100)
    for name in ("m1", "m2", "m3"):
        pool.join(None, name, name, "c", "math")
    with pytest.raises(
        UnavailableError, match=r"the groups of source 'math' of the next batch .* \(3 of 3\)"
    ) as caught:
        pool.join(None, "m4", "m4", "c", "math")
    assert caught.value.retry_after_s == 1
    pool.join(None, "t1", "t1", "c", "tools")
    with pytest.raises(UnavailableError, match=r"'tools' .* \(1 of 1\)"):
        pool.join(None, "t2", "t2", "c", "tools")


def test_with_policy_episodes_a_source_is_bounded_in_episodes() -> None:
    pool = Pool(BatchConfig(policy="episodes", size=4, sources={"math": 0.75, "tools": 0.25}), quiet_s=100)
    for name in ("m1", "m2", "m3"):
        pool.join(None, "t", name, "c", "math")
    assert [(view.source, view.quota, view.complete, view.open_episodes) for view in pool.sources()] == [
        ("math", 3, 0, 3),
        ("tools", 1, 0, 0),
    ]


@pytest.mark.parametrize("source", [None, "Math"])
def test_a_source_without_a_share_is_refused(source: str | None) -> None:
    with pytest.raises(RequestError, match=r"batch\.sources has math, tools") as caught:
        Pool(MIX, quiet_s=100).join(None, "t", "e", "c", source)
    assert caught.value.field == "source"


def test_a_batch_waits_for_every_source_and_takes_exactly_its_share() -> None:
    pool = Pool(MIX, quiet_s=100)
    for name in ("m1", "m2", "m3"):
        _add(pool, name, "math")
    assert pool.decision().waiting_for == "3 of 4 groups complete; by source: tools 0 of 1"
    _add(pool, "t1", "tools")
    assert pool.decision().take == ("m1", "m2", "m3", "t1")
    assert [view.complete for view in pool.sources()] == [3, 1]


def test_what_is_over_stays_for_the_next_batch() -> None:
    pool = Pool(MIX, quiet_s=100)
    for name in ("m1", "m2", "m3", "m4"):  # as after a job with other shares
        pool.finish(PoolRow(name, name, False, name, 1.0, 0, "c", time.time(), "math"))
    assert not pool.decision().ready
    _add(pool, "t1", "tools")
    assert pool.decision().take == ("m1", "m2", "m3", "t1")


def test_episodes_of_a_source_that_lost_its_share_are_set_aside() -> None:
    pool = Pool(MIX, quiet_s=100)
    for name, source in (("m1", "math"), ("x1", "other"), ("n1", None)):
        pool.finish(PoolRow(name, name, False, name, 1.0, 0, "c", time.time(), source))
    assert [row.episode_id for row in pool.unusable()] == ["x1", "n1"]


def test_a_group_is_of_one_source() -> None:
    pool = Pool(CONFIG, quiet_s=100)
    first = pool.join(None, "t", "e1", "c", "math")
    assert pool.join(None, "t", "e2", "c", "tools") != first
    named = Pool(CONFIG, quiet_s=100)
    named.join("g", "t", "e1", "c", "math")
    with pytest.raises(ConflictError, match="belongs to source 'math', not None"):
        named.join("g", "t", "e2", "c")
