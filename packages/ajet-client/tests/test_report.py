from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_client import EpisodeRecord, RunReport, Task
from ajet_client.report import slots
from ajet_core.episode import EpisodeKind


def record(reward: float | None, **metrics: float) -> EpisodeRecord:
    return EpisodeRecord(Task("t"), "grp_1", "ep_1", EpisodeKind.TRAIN, reward, metrics, 2, None, 1.0)


def test_an_empty_report() -> None:
    report = RunReport()
    assert (report.reward_mean, report.metric_means, report.rewards_by_group()) == (None, {}, {})
    assert str(report) == "0 finished, 0 failed, 0 attempts, mean reward none"


@given(st.lists(st.none() | st.floats(-100, 100), max_size=20))
def test_failures_are_counted_and_never_averaged(rewards: list[float | None]) -> None:
    report = RunReport()
    for reward in rewards:
        report.add(record(reward))
    known = [reward for reward in rewards if reward is not None]
    assert (report.finished, report.failed) == (len(known), len(rewards) - len(known))
    assert report.attempts == 2 * len(rewards)
    assert report.reward_mean == (pytest.approx(sum(known) / len(known)) if known else None)
    assert report.rewards_by_group() == ({"grp_1": known} if known else {})


def test_a_metric_is_averaged_over_those_who_reported_it() -> None:
    report = RunReport()
    report.add(record(1.0, length=2.0))
    report.add(record(1.0, length=4.0, tools=1.0))
    report.add(record(None))
    assert report.metric_means == {"length": 3.0, "tools": 1.0}


@given(tasks=st.lists(st.integers(), max_size=5), group_size=st.integers(1, 5))
def test_slots(tasks: list[int], group_size: int) -> None:
    found = list(slots(tasks, group_size))
    assert [slot.task.data for slot in found] == [task for task in tasks for _ in range(group_size)]
    groups = [
        {slot.group_id for slot in found[start : start + group_size]} for start in range(0, len(found), group_size)
    ]
    if group_size == 1:
        assert all(group == {None} for group in groups)
    else:
        assert len({slot.group_id for slot in found}) == len(tasks) == len(groups)


def test_short_groups() -> None:
    report = RunReport()
    for reward, group_id, named in ((None, "a", True), (None, "a", True), (1.0, "a", True), (None, "b", False)):
        one = record(reward)
        report.add(replace(one, group_id=group_id, group_named=named))
    assert report.short_groups == {"a": 2}
    report.add(replace(record(None), group_id="c", group_named=True))
    assert str(report).endswith("mean reward 1, 2 groups left short")
