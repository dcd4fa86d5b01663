"""The training loop against a fake worker process: every way in which a worker can be lost, in every state."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from server_helpers import Running, running, until

from ajet_core.episode import EpisodeStatus
from ajet_core.errors import (
    ConflictError,
    EngineFailedError,
    EpisodeClosedError,
    NotFoundError,
    PromptTooLongError,
    UnavailableError,
)
from ajet_core.events import EngineState
from ajet_server import conductor as conductor_module
from ajet_server.capture import steps
from ajet_server.datadir import checkpoint_name
from ajet_server.episodes import janitor

pytestmark = pytest.mark.anyio

ROLLING, DRAINING, FAILED = EngineState.ROLLING, EngineState.DRAINING, EngineState.FAILED


def trained(live: Running) -> list[tuple[int, list[str]]]:
    """(step, episodes) of every checkpoint that was written."""
    return [(entry["step"], entry["episodes"]) for entry in live.worker.log("checkpoint")]


async def test_the_loop(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model) as live:
        await live.reach(ROLLING)
        first = await live.rollout()
        await live.reach(ROLLING, step=1)
        second = await live.rollout()
        await live.reach(ROLLING, step=2)
        assert trained(live) == [(1, [first.id]), (2, [second.id])]
        assert live.server.runtime.conductor.weight_version == 2
        await until(lambda: len(live.events("state_changed")) == 11)  # a state is entered before it is told
        states = [event["state"] for event in live.events("state_changed")]
        turn = ["rolling", "draining", "updating", "syncing"]
        assert states == ["booting", "syncing", *turn, *turn, "rolling"]
        assert all(event["cause"] for event in live.events("state_changed"))
    assert live.state is EngineState.OFFLINE


async def test_a_worker_that_dies_while_it_loads_is_replaced(tmp_path: Path, model: Path) -> None:
    worker = tmp_path / "worker"
    worker.mkdir()
    (worker / "fault-load").write_text("die")
    async with running(tmp_path, model) as live:
        await live.reach(ROLLING)
        assert len(live.worker.log("load")) == 2
        (event,) = live.events("worker_restarted")
        assert "exit code 9" in event["reason"]
        assert event["restarts"] == 1


async def test_a_call_in_flight_survives_its_worker(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model) as live:
        await live.reach(ROLLING)
        record = await live.open()
        live.worker.hold()
        call = asyncio.create_task(live.chat(record))
        await until(lambda: len(live.worker.log("generate")) == 1)
        pid = live.server.status().worker_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        live.worker.release()
        result = await call
        assert result.choices[0].token_ids == [5, 6, 7]
        sent = live.worker.log("generate")
        assert len(sent) == 2
        assert sent[0]["request_id"] == sent[1]["request_id"]
        assert sent[0]["pid"] != sent[1]["pid"]
        assert live.server.runtime.episodes.view(record.id).calls == 1
        assert "SIGKILL" in live.events("worker_restarted")[0]["reason"]


async def test_a_worker_that_dies_while_draining(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model) as live:
        await live.reach(ROLLING)
        late = await live.open()
        await live.chat(late)
        done = await live.open()
        await live.chat(done)
        await live.finish(done)
        await live.reach(DRAINING)
        with pytest.raises(UnavailableError, match="draining"):
            await live.open()
        pid = live.server.status().worker_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: len(live.worker.log("load")) == 2)
        await live.finish(late)
        await live.reach(ROLLING, step=2)
        assert trained(live) == [(1, [done.id]), (2, [late.id])]


@pytest.mark.parametrize("fault", ["die", "break", "garbage", "nonsense"])
async def test_an_update_that_was_cut_off_is_done_again(tmp_path: Path, model: Path, fault: str) -> None:
    async with running(tmp_path, model) as live:
        await live.reach(ROLLING)
        live.worker.fault("update", fault)
        record = await live.rollout()
        await live.reach(ROLLING, step=1)
        asked = live.worker.log("update")
        assert [entry["batch_id"] for entry in asked] == [asked[0]["batch_id"]] * 2
        assert trained(live) == [(1, [record.id])]
        assert live.server.status().worker_restarts == 0, "a finished update forgives"


async def test_an_update_that_was_checkpointed_is_recognised(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model) as live:
        await live.reach(ROLLING)
        live.worker.fault("checkpointed", "die")
        record = await live.rollout()
        await live.reach(ROLLING, step=1)
        assert len(live.worker.log("update")) == 1
        assert trained(live) == [(1, [record.id])]
        assert len(live.events("step_finished")) == 1
        assert live.server.ledger.read_now(steps.planned_batch) is None


async def test_a_worker_that_dies_while_syncing(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model) as live:
        await live.reach(ROLLING)
        live.worker.fault("sync", "break")
        await live.rollout()
        await until(lambda: len(live.worker.log("load")) == 2)
        await live.reach(ROLLING, step=1)
        assert len(live.worker.log("update")) == 1
        assert live.server.runtime.conductor.weight_version == 1
        assert "the fake broke" in live.events("worker_restarted")[0]["reason"]


async def test_a_silent_worker_is_killed(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model, limits={"update_silence_s": 0.3}) as live:
        await live.reach(ROLLING)
        live.worker.fault("update", "hang")
        record = await live.rollout()
        await live.reach(ROLLING, step=1)
        assert trained(live) == [(1, [record.id])]
        assert "said nothing for 0.3 s" in live.events("worker_restarted")[0]["reason"]


async def test_a_worker_that_idled_long_is_not_taken_for_silent(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model, limits={"update_silence_s": 3}) as live:
        await live.reach(ROLLING)
        record = await live.open()
        process = live.server.runtime.conductor.supervisor._process
        assert process is not None
        process.heard_at -= 1000
        live.worker.hold()
        call = asyncio.create_task(live.chat(record))
        await until(lambda: len(live.worker.log("generate")) == 1)
        live.server.runtime.conductor.supervisor.end_if_silent()
        live.worker.release()
        await call
        assert live.events("worker_restarted") == []


async def test_a_load_that_takes_too_long(tmp_path: Path, model: Path) -> None:
    worker = tmp_path / "worker"
    worker.mkdir()
    (worker / "fault-load").write_text("hang")
    async with running(tmp_path, model, limits={"boot_timeout_s": 0.5}) as live:
        await until(lambda: bool(live.events("worker_restarted")))
        assert "longer than 0.5 s" in live.events("worker_restarted")[0]["reason"]


async def test_a_refusal_is_final_and_named(tmp_path: Path, model: Path) -> None:
    worker = tmp_path / "worker"
    worker.mkdir()
    (worker / "fault-load").write_text("refuse")
    async with running(tmp_path, model) as live:
        await live.reach(FAILED)
        assert live.server.status().cause == "model.path: no such model"
        assert len(live.worker.log("load")) == 1
        with pytest.raises(EngineFailedError, match="no such model"):
            await live.open()
        with pytest.raises(EngineFailedError, match="no such model"):
            live.server.runtime.conductor.require_serving()
        # Started again, without being stopped first, it works.
        await until(lambda: not live.server.runtime.conductor.active)
        live.server.start()
        await live.reach(ROLLING)


async def test_it_gives_up_after_too_many_restarts(tmp_path: Path, model: Path) -> None:
    worker = tmp_path / "worker"
    worker.mkdir()
    (worker / "fault-load").write_text("die-always")
    async with running(tmp_path, model, limits={"max_worker_restarts": 1}) as live:
        await live.reach(FAILED)
        assert len(live.worker.log("load")) == 2
        assert "gave up after 1 restarts" in live.server.status().cause


async def test_a_worker_that_cannot_be_started_is_named(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model, limits={"max_worker_restarts": 0}) as live:
        await live.server.stop("the test")
        live.server.runtime.conductor.supervisor._command = (str(tmp_path / "nothing"),)
        live.server.start()
        await live.reach(FAILED)
        assert "could not be started" in live.server.status().cause


async def test_calls_are_told_when_the_engine_failed(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model, limits={"max_worker_restarts": 0}) as live:
        await live.reach(ROLLING)
        record = await live.open()
        live.worker.fault("generate", "die")
        with pytest.raises(EngineFailedError, match="exit code 9"):
            await live.chat(record)


async def test_a_checkpoint_that_the_ledger_does_not_know(tmp_path: Path, model: Path) -> None:
    worker = tmp_path / "worker"
    worker.mkdir()
    (worker / "checkpoint").write_text('{"step": 3, "batch": "batch_other", "report": null}')
    async with running(tmp_path, model) as live:
        await live.reach(FAILED)
        assert "checkpoint is of step 3, but the ledger counts 0" in live.server.status().cause


async def test_a_mistake_of_ours_becomes_a_cause(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model) as live:
        await live.reach(ROLLING)
        (live.worker.folder / "checkpoint").write_text('{"step": 1, "batch": "batch_x", "report": "{}"}')
        live.server.runtime.pool.take = None  # type: ignore[assignment, method-assign]
        await live.rollout()
        await live.reach(FAILED)
        assert "TypeError" in live.server.status().cause


async def test_drain_has_a_deadline(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model, limits={"drain_timeout_s": 0.1}) as live:
        await live.reach(ROLLING)
        idle = await live.open()
        done = await live.open()
        await live.chat(done)
        await live.finish(done)
        await live.reach(ROLLING, step=1)
        await live.chat(idle)
        await live.finish(idle)
        await live.reach(ROLLING, step=2)


async def test_a_call_that_outlives_the_drain_begins_again(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conductor_module, "_MIN_PATIENCE_S", 0.05)
    async with running(tmp_path, model, limits={"drain_timeout_s": 0.1}) as live:
        await live.reach(ROLLING)
        slow, quick = [await live.open() for _ in range(3)], await live.open()
        await live.chat(quick)
        live.worker.hold()
        calls = [asyncio.create_task(live.chat(record)) for record in slow]
        await until(lambda: len(live.worker.log("generate")) == 4)
        await live.finish(quick)
        await until(lambda: len(live.worker.log("generate")) == 7)
        live.worker.release()
        results = await asyncio.gather(*calls)
        assert {result.weight_version for result in results} == {1}, "no call mixes weights"
        assert len({entry["request_id"] for entry in live.worker.log("cancel")}) == 3
        assert [live.server.runtime.episodes.view(record.id).calls for record in slow] == [1, 1, 1]


async def test_a_call_has_a_deadline(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model, limits={"request_timeout_s": 0.2}) as live:
        await live.reach(ROLLING)
        record = await live.open()
        live.worker.hold()
        with pytest.raises(UnavailableError, match=r"still running after 0\.2 s") as caught:
            await live.chat(record)
        assert caught.value.retry_after_s == 5
        await until(lambda: len(live.worker.log("cancel")) == 1)
        live.worker.release()
        await live.chat(record)
        assert live.server.runtime.episodes.view(record.id).calls == 1


async def test_a_cancelled_call_is_cancelled_in_the_worker(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model) as live:
        await live.reach(ROLLING)
        record = await live.open()
        live.worker.hold()
        call = asyncio.create_task(live.chat(record))
        await until(lambda: len(live.worker.log("generate")) == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: len(live.worker.log("cancel")) == 1)
        status = live.server.status()
        assert (status.requests_running, status.requests_waiting) == (0, 0)


async def test_stopped_in_an_update_and_started_again(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model) as live:
        await live.reach(ROLLING)
        live.worker.fault("update", "die")
        record = await live.rollout()
        await until(lambda: live.server.ledger.read_now(steps.planned_batch) is not None)
        await live.server.stop("the test")
        assert live.state is EngineState.OFFLINE
        live.server.start()
        await live.reach(ROLLING, step=1)
        second = await live.rollout()
        await live.reach(ROLLING, step=2)
        assert trained(live) == [(1, [record.id]), (2, [second.id])]


async def test_a_batch_survives_the_server(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model) as live:
        await live.reach(ROLLING)
        live.worker.fault("update", "hang")
        record = await live.rollout()
        await until(lambda: len(live.worker.log("update")) == 1)
        pid = live.server.status().worker_pid
        assert pid is not None
        live.server.runtime.conductor.supervisor.shut_down = live.server.events.close  # type: ignore[method-assign]
    os.kill(pid, signal.SIGKILL)
    async with running(tmp_path, model) as again:
        await again.reach(ROLLING, step=1)
        assert trained(again) == [(1, [record.id])]
        assert again.server.runtime.pool.rows == []


async def test_late_episodes_that_are_too_old_are_not_trained(tmp_path: Path, model: Path) -> None:
    limits = {"drain_timeout_s": 0.05}
    async with running(tmp_path, model, batch={"max_staleness": 0}, limits=limits) as live:
        await live.reach(ROLLING)
        late = await live.open()
        await live.chat(late)
        await live.rollout()
        await live.reach(ROLLING, step=1)
        await live.finish(late)
        await until(lambda: live.server.status().pool.stale_episodes == 1)
        await live.reach(ROLLING)
        fresh = await live.rollout()
        await live.reach(ROLLING, step=2)
        assert trained(live)[1] == (2, [fresh.id])


async def test_evaluations_run_in_any_state_that_serves_and_are_never_trained(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model) as live:
        await live.reach(ROLLING)
        evaluation = await live.rollout(kind="eval")
        open_one = await live.open()
        await live.rollout()
        await live.reach(DRAINING)
        assert (await live.open(kind="eval")).kind == "eval"
        await live.server.runtime.episodes.lose(open_one.id, EpisodeStatus.ABORTED, "the test")
        await live.reach(ROLLING, step=1)
        assert all(evaluation.id not in episodes for _, episodes in trained(live))


async def test_the_janitor_expires_the_silent(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(janitor, "_EVERY_S", 0.01)
    async with running(tmp_path, model, limits={"lease_s": 0.1}) as live:
        await live.reach(ROLLING)
        record = await live.open()
        await until(lambda: bool(live.events("episode_lost")))
        assert live.server.runtime.episodes.view(record.id).status == "expired"
        (lost,) = live.events("episode_lost")
        assert (lost["status"], lost["episode_id"]) == ("expired", record.id)
        assert "limits.lease_s=0.1" in lost["reason"]


async def test_a_job_is_changed_while_the_engine_is_offline(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model) as live:
        await live.reach(ROLLING)
        job = live.server.runtime.job
        with pytest.raises(ConflictError, match="stop it"):
            await live.server.set_job(job)
        record = await live.open()
        await live.server.stop("the test")
        await live.server.set_job(job.model_copy(update={"name": "other"}))
        live.server.start()
        await live.reach(ROLLING)
        await live.chat(record)
        await live.finish(record)
        await live.reach(ROLLING, step=1)
        assert live.server.status().name == "other"


async def test_an_abort_ends_the_call_that_runs(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model) as live:
        await live.reach(ROLLING)
        record = await live.open()
        live.worker.hold()
        call = asyncio.create_task(live.chat(record))
        await until(lambda: len(live.worker.log("generate")) == 1)
        await live.server.runtime.episodes.lose(record.id, EpisodeStatus.ABORTED, "no longer wanted")
        with pytest.raises(EpisodeClosedError, match="was closed while the call ran"):
            await call
        live.worker.release()
        await until(lambda: len(live.worker.log("cancel")) == 1)
        assert live.server.runtime.episodes.view(record.id).calls == 0


async def test_what_will_be_trained_fits_a_pack(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model, trainer={"pack_tokens": 40}) as live:
        await live.reach(ROLLING)
        evaluated, trained = await live.open(kind="eval"), await live.open()
        long = [{"role": "user", "content": "hello " * 60}]
        assert await live.chat(evaluated, messages=long)
        with pytest.raises(PromptTooLongError, match="the context is 40"):
            await live.chat(trained, messages=long)


async def test_an_evaluation_of_a_named_version_outlives_updates(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model) as live:
        await live.reach(ROLLING)
        await live.rollout()
        await live.reach(ROLLING, step=1)
        (live.server.data_dir.checkpoints / checkpoint_name(1)).mkdir()  # what the real worker would have left
        record = await live.open(kind="eval", weights=1)
        assert (record.weights, record.weight_version) == (1, 1)
        await live.chat(record)
        await live.rollout()
        await live.reach(ROLLING, step=2)
        await live.chat(record)
        assert [call.record.weight_version for call in live.calls(record)] == [1, 1]
        with pytest.raises(UnavailableError, match=r"open episodes use version 1.*engine.eval_versions=1"):
            await live.open(kind="eval", weights=0)
        view = await live.finish(record)
        assert (view.weights, view.weight_version, view.batch_id) == (1, 1, None)
        await live.rollout()
        await live.reach(ROLLING, step=3)
        assert [entry["keep"] for entry in live.worker.log("update")] == [[], [1], []]
        sent = [(entry["weights"], entry["evaluation"]) for entry in live.worker.log("generate")]
        assert sent == [(None, False), (1, True), (None, False), (1, True), (None, False)]
        with pytest.raises(NotFoundError, match="version 2 is not there; there are 0, 1 "):
            await live.open(kind="eval", weights=2)


async def test_named_versions_are_known_again_after_a_restart(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model) as live:
        await live.reach(ROLLING)
        record = await live.open(kind="eval", weights=0)
    async with running(tmp_path, model) as live:
        await live.reach(ROLLING)
        await live.chat(record)
        (live.server.data_dir.checkpoints / checkpoint_name(1)).mkdir()
        with pytest.raises(UnavailableError, match="open episodes use version 0"):
            await live.open(kind="eval", weights=1)
        await live.finish(record)
        await live.open(kind="eval", weights=1)


async def test_a_drain_waits_for_no_evaluation(tmp_path: Path, model: Path) -> None:
    async with running(tmp_path, model, limits={"drain_timeout_s": 3600}) as live:
        await live.reach(ROLLING)
        evaluation, train = await live.open(kind="eval"), await live.open()
        await live.chat(train)
        live.worker.hold()
        call = asyncio.create_task(live.chat(evaluation))
        await until(lambda: len(live.worker.log("generate")) == 2)
        await live.finish(train)
        await live.reach(ROLLING, step=1)
        live.worker.release()
        assert (await call).weight_version == 1
