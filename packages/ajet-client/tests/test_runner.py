import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from pydantic import JsonValue

from ajet_client import EpisodeRecord, RunReport, Swarm, Task
from ajet_client.agents import Agent
from ajet_client.episode import Episode
from ajet_client.testing import FakeClock, FakeServer
from ajet_core.errors import ConflictError, EngineFailedError, KeyRefusedError, RequestError, UnavailableError
from ajet_core.events import EngineState


def run(swarm: Swarm, agent: Agent, tasks: object, **options: object) -> RunReport:
    return swarm.run(agent, tasks, **({"progress": False} | options))  # type: ignore[arg-type]


def runner_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("ajet-agent")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    for thread in runner_threads():
        thread.join(5)
    assert runner_threads() == []


def test_each_task_is_a_group_of_its_own(swarm: Swarm, server: FakeServer) -> None:
    report = run(swarm, lambda episode: 0.5, ["a", "b"], group_size=4, kind="eval", weights=0, source="math")
    groups: dict[JsonValue, set[str]] = {}
    for episode in server.episodes:
        groups.setdefault(str(episode.task), set()).add(episode.group_id)
    assert {task: len(ids) for task, ids in groups.items()} == {"a": 1, "b": 1}
    assert groups["a"] != groups["b"]
    asked = {(episode.kind, episode.weights, episode.source) for episode in server.episodes}
    assert asked == {("eval", 0, "math")}
    assert sorted(map(len, report.rewards_by_group().values())) == [4, 4]
    assert (report.finished, report.failed, report.attempts, report.reward_mean) == (8, 0, 8, 0.5)


def test_only_an_evaluation_names_its_weights(swarm: Swarm, server: FakeServer) -> None:
    with pytest.raises(RequestError, match="only a run of kind 'eval' may name its weights"):
        run(swarm, lambda episode: 0.5, ["a"], weights=3)
    with pytest.raises(RequestError, match="only an episode of kind 'eval'"), swarm.episode("a", weights=3):
        pass
    assert server.episodes == []


def test_single_episodes_leave_the_groups_to_the_server(swarm: Swarm, server: FakeServer) -> None:
    run(swarm, lambda episode: 1.0, ["a", "b"])
    run(swarm, lambda episode: 1.0, ["a"], group_size=2)
    assert [episode.group_named for episode in server.episodes] == [False, False, True, True]


def test_an_agent_may_return_the_reward_or_set_it(swarm: Swarm, server: FakeServer) -> None:
    def agent(episode: Episode) -> float | None:
        if episode.task == "set":
            episode.reward(0.25, tokens=4)
            return None
        return 0.75

    report = run(swarm, agent, ["set", Task("return", id="named")])
    records = {record.task.data: record for record in report.records}
    assert (records["set"].reward, records["set"].metrics) == (0.25, {"tokens": 4.0})
    assert records["return"].reward == 0.75
    assert report.metric_means == {"tokens": 4.0}
    assert {episode.task_id for episode in server.episodes} == {'"set"', "named"}


@pytest.mark.parametrize(
    ("returned", "error"),
    [(None, "returned None"), ("1.0", "must be a number"), (float("nan"), "must be finite")],
)
def test_an_agent_without_a_proper_reward_fails(swarm: Swarm, server: FakeServer, returned: object, error: str) -> None:
    report = run(swarm, lambda episode: returned, ["a"], attempts=2)
    (record,) = report.records
    assert (record.reward, record.attempts, report.finished, report.failed) == (None, 2, 0, 1)
    assert record.error is not None
    assert record.error.startswith("RewardError: ")
    assert error in record.error
    assert report.reward_mean is None
    assert [episode.status for episode in server.episodes] == ["aborted", "aborted"]


def test_a_failed_attempt_is_refilled_in_the_same_group(swarm: Swarm, server: FakeServer) -> None:
    failures = Counter[str]()

    def agent(episode: Episode) -> float:
        if episode.task == "flaky" and failures["flaky"] < 2:
            failures["flaky"] += 1
            raise ConnectionError("the sandbox died")
        return 1.0

    report = run(swarm, agent, ["flaky", "good"], group_size=2, attempts=3, concurrency=1)
    flaky = [episode for episode in server.episodes if episode.task == "flaky"]
    assert len({episode.group_id for episode in flaky}) == 1
    assert [episode.status for episode in flaky] == ["aborted", "aborted", "finished", "finished"]
    assert flaky[0].reason == "ConnectionError: the sandbox died"
    assert (report.finished, report.failed, report.attempts) == (4, 0, 6)
    assert [record.attempts for record in report.records] == [3, 1, 1, 1]
    assert all(record.error is None for record in report.records)


def test_a_hopeless_episode_is_reported_and_is_no_zero(swarm: Swarm, server: FakeServer) -> None:
    def agent(episode: Episode) -> float:
        if episode.task == "bad":
            raise TimeoutError("too slow")
        return 1.0

    report = run(swarm, agent, ["bad", "good"])
    bad = next(record for record in report.records if record.task.data == "bad")
    assert (bad.reward, bad.attempts, bad.error, bad.metrics) == (None, 3, "TimeoutError: too slow", {})
    assert server.rewards == [1.0]
    assert report.reward_mean == 1.0
    assert str(report) == "1 finished, 1 failed, 4 attempts, mean reward 1"


def test_an_episode_that_the_server_closed_is_tried_again(swarm: Swarm, server: FakeServer) -> None:
    def agent(episode: Episode) -> float:
        if len(server.episodes) == 1:
            server.close_episode(episode.id, "drained")
        return 1.0

    report = run(swarm, agent, ["a"])
    assert (report.finished, report.attempts) == (1, 2)


@pytest.mark.parametrize("concurrency", [1, 3, 8])
def test_concurrency_is_used_and_never_exceeded(swarm: Swarm, concurrency: int) -> None:
    lock, most, now, threads = threading.Lock(), 0, 0, set[str]()
    all_here = threading.Barrier(concurrency)

    def agent(episode: Episode) -> float:
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
            threads.add(threading.current_thread().name)
        all_here.wait(10)  # breaks unless `concurrency` agents run at once
        with lock:
            now -= 1
        return 1.0

    report = run(swarm, agent, range(concurrency * 4), concurrency=concurrency)
    assert report.finished == concurrency * 4
    assert most == concurrency
    assert len(threads) == concurrency


def test_no_more_threads_than_episodes(swarm: Swarm) -> None:
    seen: set[threading.Thread] = set()
    run(swarm, lambda episode: seen.add(threading.current_thread()) or 1.0, range(2), concurrency=64)
    assert len(seen) <= 2


def test_an_endless_generator_is_read_only_as_far_as_there_is_room(swarm: Swarm) -> None:
    read, done, furthest = 0, 0, 0
    lock = threading.Lock()

    def endless() -> Iterator[int]:
        nonlocal read
        for number in itertools.count():
            read = number + 1
            yield number

    def agent(episode: Episode) -> float:
        nonlocal done, furthest
        with lock:
            furthest = max(furthest, read - done // 2)
            done += 1
            if done >= 60:
                raise KeyboardInterrupt
        return 1.0

    with pytest.raises(KeyboardInterrupt):
        run(swarm, agent, endless(), group_size=2, concurrency=4)
    assert furthest <= 4
    assert read <= 34


def test_a_run_report_keeps_the_latest_records_only_if_asked(swarm: Swarm) -> None:
    report = run(swarm, lambda episode: 1.0, range(10), keep_records=3)
    assert (len(report.records), report.finished) == (3, 10)


def test_results_are_told_one_at_a_time(swarm: Swarm) -> None:
    records: list[EpisodeRecord] = []
    inside = threading.Lock()

    def on_result(record: EpisodeRecord) -> None:
        assert inside.acquire(blocking=False)
        records.append(record)
        inside.release()

    report = run(swarm, lambda episode: 1.0, range(20), on_result=on_result)
    assert records == list(report.records)


def test_an_error_in_on_result_stops_the_run(swarm: Swarm) -> None:
    def on_result(record: EpisodeRecord) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        run(swarm, lambda episode: 1.0, itertools.count(), on_result=on_result)


def test_an_error_in_the_tasks_stops_the_run(swarm: Swarm, server: FakeServer) -> None:
    def tasks() -> Iterator[int]:
        yield 1
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine") as caught:
        run(swarm, lambda episode: 1.0, tasks())
    assert "the run was stopped: " in caught.value.__notes__[0]


def test_when_no_episode_can_be_opened_the_run_ends_with_the_reason(swarm: Swarm, server: FakeServer) -> None:
    server.fail("open", "updating (step 3)", retry_after_s=9, times=1000)
    with pytest.raises(UnavailableError, match="opening an episode: updating"):
        run(swarm, lambda episode: 1.0, range(100), wait=60)


def test_a_refused_key_ends_the_run_at_once(swarm: Swarm, server: FakeServer) -> None:
    server.refuse("open", KeyRefusedError("unknown token"), times=1000)
    with pytest.raises(KeyRefusedError):
        run(swarm, lambda episode: 1.0, itertools.count(), concurrency=2)
    assert server.requests.count("open") <= 3


@pytest.mark.parametrize("field", ["group_size", "concurrency", "attempts"])
def test_bounds_are_at_least_one(swarm: Swarm, field: str) -> None:
    with pytest.raises(RequestError, match="at least 1") as caught:
        run(swarm, lambda episode: 1.0, [], **{field: 0})
    assert caught.value.field == field


def job(policy: str) -> dict[str, object]:
    return {"model": {"path": "m"}, "batch": {"policy": policy, "group_size": 8}}


@pytest.mark.parametrize(
    ("policy", "kind", "group_size", "episodes"),
    [
        ("groups", "train", None, 8),
        ("informative_groups", "train", None, 8),
        ("episodes", "train", None, 1),
        ("groups", "eval", None, 1),
        ("groups", "train", 8, 8),
        ("groups", "eval", 4, 4),
        ("episodes", "train", 4, 4),
    ],
)
def test_how_many_episodes_a_task_gets(
    swarm: Swarm, server: FakeServer, policy: str, kind: str, group_size: int | None, episodes: int
) -> None:
    swarm.set_job(job(policy))
    report = run(swarm, lambda episode: 1.0, ["a", "b"], group_size=group_size, kind=kind)
    assert report.finished == 2 * episodes
    assert {episode.group_named for episode in server.episodes} == {episodes > 1}
    if episodes > 1:
        assert sorted(map(len, report.rewards_by_group().values())) == [episodes, episodes]


@pytest.mark.parametrize(("policy", "group_size"), [("groups", 4), ("informative_groups", 9)])
def test_groups_that_could_never_be_trained_are_refused(
    swarm: Swarm, server: FakeServer, policy: str, group_size: int
) -> None:
    swarm.set_job(job(policy))
    with pytest.raises(RequestError, match=r"groups of 8.*leave group_size out") as caught:
        run(swarm, lambda episode: 1.0, ["a"], group_size=group_size)
    assert caught.value.field == "group_size"
    assert "open" not in server.requests


@pytest.mark.parametrize("tasks", [["a", "b"], ("a",), {"a", "b"}, range(4), [Task("a", "1"), Task("a", "2")]])
def test_distinct_tasks_that_could_never_fill_a_group_are_refused(
    swarm: Swarm, server: FakeServer, tasks: object
) -> None:
    swarm.set_job(job("groups"))
    with pytest.raises(RequestError, match=r"no two of these tasks are equal.*leave group_size out") as caught:
        run(swarm, lambda episode: 1.0, tasks, group_size=1)
    assert caught.value.field == "group_size"
    assert "open" not in server.requests


@pytest.mark.parametrize("tasks", [["a", "b", "a"], iter(["a", "b"]), [Task("a", "1"), Task("b", "1")], []])
def test_single_episodes_of_equal_or_unknown_tasks_are_the_users_choice(swarm: Swarm, tasks: object) -> None:
    swarm.set_job(job("groups"))
    assert run(swarm, lambda episode: 1.0, tasks, group_size=1).failed == 0


def test_a_run_waits_for_a_job(server: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    with Swarm(server.url, transport=server.transport(), clock=clock) as swarm:
        fake_job, server.job = server.job, None
        sleep = clock.sleep

        def sleep_until_there_is_a_job(seconds: float, stop: threading.Event | None = None) -> None:
            sleep(seconds, stop)
            server.job = fake_job if clock.time > 30 else None

        clock.sleep = sleep_until_there_is_a_job  # type: ignore[method-assign]
        assert run(swarm, lambda episode: 1.0, ["a"]).finished == 1
        assert [record.message for record in caplog.records] == [
            "waiting for a job, up to 600 s more: no job was set",
        ]
        clock.sleep = sleep  # type: ignore[method-assign]
        server.job = None
        with pytest.raises(UnavailableError, match="gave up after 60 s waiting for a job: no job was set"):
            run(swarm, lambda episode: 1.0, ["a"], wait=60)


def test_a_failed_engine_ends_the_run_at_once(swarm: Swarm, server: FakeServer, clock: FakeClock) -> None:
    def agent(episode: Episode) -> float:
        server.state = EngineState.FAILED
        raise ConnectionError("500 from the model")

    with pytest.raises(EngineFailedError, match="the engine failed: a fake server"):
        run(swarm, agent, itertools.count(), concurrency=1)
    assert (server.requests.count("open"), clock.sleeps) == (2, [])


def test_an_engine_that_is_off_ends_the_run_at_its_deadline(swarm: Swarm, server: FakeServer, clock: FakeClock) -> None:
    swarm.stop()
    with pytest.raises(UnavailableError, match=r"gave up after \d+ s opening an episode: the engine is offline"):
        run(swarm, lambda episode: 1.0, ["a"], wait=60)
    assert 50 < clock.time <= 60


def test_a_group_that_is_left_short_is_reported(
    swarm: Swarm, server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    failures = Counter[str]()

    def agent(episode: Episode) -> float:
        failures[str(episode.task)] += 1
        if episode.task == "bad" and failures["bad"] <= 4:
            raise TimeoutError("too slow")
        return 1.0

    report = run(swarm, agent, ["bad", "good"], group_size=3, attempts=2, concurrency=1)
    bad = [record for record in report.records if record.task.data == "bad"]
    assert report.short_groups == {bad[0].group_id: 2}
    assert str(report).endswith("2 failed, 8 attempts, mean reward 1, 1 group left short")
    assert [record.error for record in bad] == [
        *[f"TimeoutError: too slow; no attempt is left, so group {bad[0].group_id} stays short of it"] * 2,
        None,
    ]


def test_an_episode_whose_group_others_have_filled_finds_another_place(swarm: Swarm, server: FakeServer) -> None:
    def tasks() -> Iterator[str]:
        yield "a"

    opened = itertools.count(1)

    def agent(episode: Episode) -> float:
        if next(opened) == 2:
            server.refuse("open", ConflictError("group_id: the group is full", field="group_id"))
        return 1.0

    report = run(swarm, agent, tasks(), group_size=3, concurrency=1)
    assert [episode.group_named for episode in server.episodes] == [True, True, False]
    assert (report.finished, report.attempts, report.short_groups) == (3, 3, {})


@pytest.mark.parametrize("group_size", [1, 2])
def test_other_conflicts_end_the_run(swarm: Swarm, server: FakeServer, group_size: int) -> None:
    server.refuse("open", ConflictError("request_id: used up", field="request_id"), times=9)
    with pytest.raises(ConflictError, match="used up"):
        run(swarm, lambda episode: 1.0, ["a"], group_size=group_size, concurrency=1)
    assert server.requests.count("open") == 1


def test_ctrl_c_cuts_the_openings_that_the_server_holds() -> None:
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        assert server.wait_for("open", 3)
        signal.pthread_kill(main, signal.SIGINT)

    with FakeServer().serve() as server, Swarm(server.url) as swarm:
        server.hold("open", times=3)
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            run(swarm, lambda episode: 1.0, itertools.count(), concurrency=3)
        assert runner_threads() == []  # none had to be left behind
        assert server.wait_until_left(3)
        thread.join(10)
    assert server.requests.count("open") == 6  # each was asked for again, and what came was aborted
    assert {episode.status for episode in server.episodes} == {"aborted"}


def test_ctrl_c_stops_opening_aborts_what_is_open_and_goes_on(server: FakeServer) -> None:
    main, inside = threading.main_thread().ident, threading.Barrier(4)
    assert main is not None

    def agent(episode: Episode) -> float:
        if inside.wait(10) == 0:
            signal.pthread_kill(main, signal.SIGINT)
        assert server.wait_for("abort", 4)
        return 1.0

    with Swarm(server.url, transport=server.transport()) as swarm, pytest.raises(KeyboardInterrupt) as caught:
        run(swarm, agent, itertools.count(), concurrency=4)
    assert len(server.episodes) == 4
    assert {episode.status for episode in server.episodes} == {"aborted"}
    assert {episode.reason for episode in server.episodes} == {"the run was stopped: KeyboardInterrupt"}
    assert "0 finished" in caught.value.__notes__[0]


def test_a_hung_agent_does_not_keep_the_process_alive() -> None:
    script = """
        import sys, threading
        from ajet_client import Swarm, runner
        runner._GRACE_S = 0.1
        def agent(episode):
            print("running", flush=True)
            threading.Event().wait()
        Swarm(sys.argv[1]).run(agent, range(9), concurrency=1, progress=False)
    """
    with FakeServer().serve() as server:
        command = [sys.executable, "-c", textwrap.dedent(script), server.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"
            os.kill(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors
    assert "the run was stopped: 0 finished" in errors
    assert [episode.status for episode in server.episodes] == ["aborted"]


def test_workers_that_wait_for_an_episode_are_woken(server: FakeServer) -> None:
    def agent(episode: Episode) -> float:
        assert server.wait_for("open", 3)  # the two others were told to come again in five minutes
        raise KeyboardInterrupt

    def tasks() -> Iterator[int]:
        yield 0
        assert server.wait_for("open", 1)
        server.fail("open", "full", retry_after_s=300, times=2)
        yield from itertools.count(1)

    with Swarm(server.url, transport=server.transport()) as swarm, pytest.raises(KeyboardInterrupt):
        run(swarm, agent, tasks(), concurrency=3)
    assert len(server.episodes) == 1


def test_the_clock_of_the_swarm_times_the_records(swarm: Swarm, clock: FakeClock) -> None:
    def agent(episode: Episode) -> float:
        clock.time += 7.0
        return 1.0

    assert run(swarm, agent, ["a"]).records[0].seconds == pytest.approx(7.0)
