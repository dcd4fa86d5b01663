from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_client import EpisodeRecord, RunReport, Task
from ajet_client.report import slots
from ajet_core.episode import EpisodeKind
from ajet_core.errors import RequestError
from ajet_core.passk import PassAt


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


def of_task(name: str, *rewards: float | None) -> list[EpisodeRecord]:
    return [replace(record(reward), task=Task({"q": name})) for reward in rewards]


def test_pass_at_k_counts_tasks_and_never_a_failure_as_a_miss() -> None:
    report = RunReport()
    for one in [*of_task("a", 1.0, 0.0, 0.0, 1.0), *of_task("b", 0.4, None, 0.9, None), *of_task("c", None)]:
        report.add(one)
    assert report.pass_at(1) == PassAt(1, (0.5 + 0) / 2, 2, 1)
    assert report.pass_at(2, success=0.9).value == pytest.approx((1 - 1 / 6 + 1) / 2)
    assert report.pass_at(4) == PassAt(4, 1.0, 1, 2)
    assert [one.k for one in report.passes()] == [1, 2, 4]
    assert RunReport().passes() == []
    with pytest.raises(RequestError, match="at least 1"):
        report.pass_at(0)


def test_pass_at_k_of_a_part_is_refused() -> None:
    report = RunReport(deque(maxlen=2))
    for one in of_task("a", 1.0, 0.0, 0.0):
        report.add(one)
    with pytest.raises(RequestError, match="only 2 of 3 records"):
        report.pass_at(1)
