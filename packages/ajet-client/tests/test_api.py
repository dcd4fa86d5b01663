import pytest

from ajet_client import Swarm
from ajet_client.api import Api
from ajet_client.bodies import finish_body, kind_of
from ajet_client.plans import Broken, Pause, Reply, Request
from ajet_client.testing import FakeClock, FakeServer
from ajet_core.config import BatchConfig, Job, ModelConfig
from ajet_core.errors import (
    AjetError,
    ConfigError,
    ConflictError,
    EngineFailedError,
    NotFoundError,
    RequestError,
    RewardError,
    UnavailableError,
)
from ajet_core.events import EngineState


def test_the_job_goes_there_and_back(swarm: Swarm) -> None:
    job = Job(model=ModelConfig(path="m"))
    swarm.set_job(job)
    assert swarm.job() == job
    swarm.set_job({"name": "other", "model": {"path": "m"}})
    assert swarm.job().name == "other"


def test_a_job_that_the_server_refuses_names_its_field(swarm: Swarm, server: FakeServer) -> None:
    server.refuse("job", ConfigError("seed: got -1", field="seed"))
    with pytest.raises(ConfigError, match="got -1") as caught:
        swarm.set_job({"seed": -1})
    assert caught.value.field == "seed"


def test_without_a_job_there_is_none(swarm: Swarm, server: FakeServer) -> None:
    server.job = None
    with pytest.raises(NotFoundError):
        swarm.job()


def test_start_and_stop(swarm: Swarm) -> None:
    swarm.stop()
    assert swarm.status().state == EngineState.OFFLINE
    swarm.start()
    assert swarm.status().state == EngineState.ROLLING


def test_a_client_agrees_to_an_update_and_takes_it_back(swarm: Swarm, server: FakeServer) -> None:
    with pytest.raises(ConflictError, match="asks no client"):
        swarm.ready()
    server.job = Job(model=ModelConfig(path="m"), batch=BatchConfig(policy="any_client"))
    assert swarm.ready().clients_ready == [swarm.client_id]
    assert swarm.ready().clients_ready == [swarm.client_id], "again is harmless"
    assert swarm.status().pool.clients_ready == [swarm.client_id]
    assert swarm.ready(False).clients_ready == []


def test_a_shutdown_returns_when_nobody_answers_any_more(swarm: Swarm, server: FakeServer) -> None:
    swarm.shutdown()
    assert server.requests == ["shutdown", "health"]


def test_a_shutdown_of_a_server_that_is_not_there_is_an_error(swarm: Swarm, server: FakeServer) -> None:
    swarm.shutdown()
    with pytest.raises(UnavailableError, match=f"^no answer from {server.url}: nobody listens"):
        swarm.shutdown()
    assert server.requests == ["shutdown", "health", "shutdown"]


@pytest.mark.parametrize("acted", [True, False])
def test_a_shutdown_whose_answer_was_lost_is_not_taken_for_done(swarm: Swarm, server: FakeServer, acted: bool) -> None:
    server.cut("shutdown", acted=acted)
    with pytest.raises(UnavailableError, match="no answer"):
        swarm.shutdown()


def test_an_ending_server_may_cut_connections_and_stumble(clock: FakeClock) -> None:
    plan = Api(None, None, 1.0, 1.0, clock).shutdown(20.0)
    next(plan)
    plan.send(Reply(202))
    for outcome in (Broken("cut"), Reply(503), Broken("timed out")):
        assert isinstance(plan.send(outcome), Pause)
        assert plan.send(None) == Request("GET", "/healthz", timeout_s=20.0)
    with pytest.raises(StopIteration):
        plan.send(Broken("refused", refused=True))


@pytest.mark.parametrize(
    ("last", "seen"), [(Broken("no answer: timed out"), "no answer: timed out"), (Reply(503), "it still answers")]
)
def test_silence_is_no_end(last: Reply | Broken, seen: str, clock: FakeClock) -> None:
    plan = Api(None, None, 1.0, 1.0, clock).shutdown(20.0)
    assert next(plan) == Request("POST", "/api/shutdown", timeout_s=20.0)
    assert plan.send(Reply(202)) == Request("GET", "/healthz", timeout_s=20.0)
    clock.time = 19.5
    assert isinstance(plan.send(Broken("no answer: timed out")), Pause)
    assert plan.send(None) == Request("GET", "/healthz", timeout_s=1.0)
    clock.time = 20.5
    assert isinstance(plan.send(Reply(200)), Pause)
    plan.send(None)
    with pytest.raises(UnavailableError, match=seen):
        plan.send(last)


def test_a_shutdown_that_is_refused_or_takes_too_long_is_an_error(swarm: Swarm, server: FakeServer) -> None:
    server.refuse("shutdown", ConflictError("not now"))
    with pytest.raises(ConflictError):
        swarm.shutdown()
    server.lingers = True
    with pytest.raises(UnavailableError, match="not gone 5 s after it was told to end: it still answers"):
        swarm.shutdown(5.0)


def test_the_view_of_an_episode(swarm: Swarm) -> None:
    with swarm.episode("a task") as episode:
        assert swarm.view(episode.id).status == "open"
        episode.reward(1)
    assert swarm.view(episode.id).reward == 1.0


def test_waiting_until_a_server_serves(swarm: Swarm, server: FakeServer, clock: FakeClock) -> None:
    server.state = EngineState.BOOTING
    server.fail("status", "restarting", times=2)
    with pytest.raises(UnavailableError, match=r"gave up after 30 s waiting for the server: it is booting \(a fake"):
        swarm.wait_until_serving(30.0)
    assert clock.time == pytest.approx(30.0, abs=1.0)
    server.state = EngineState.ROLLING
    assert swarm.wait_until_serving(0.0).state == EngineState.ROLLING


def test_waiting_ends_when_the_engine_failed(swarm: Swarm, server: FakeServer, clock: FakeClock) -> None:
    server.state = EngineState.FAILED
    with pytest.raises(EngineFailedError, match="a fake server"):
        swarm.wait_until_serving(30.0)
    assert clock.time == 0.0


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"state": "dreaming"}'])
def test_an_answer_of_another_server_is_explained(body: bytes, clock: FakeClock) -> None:
    plan = Api(None, None, 1.0, 1.0, clock).status()
    next(plan)
    with pytest.raises(AjetError, match="is this the URL of an ajet server"):
        plan.send(Reply(200, body))


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"kind": "test"}, "kind"),
        ({"task": object()}, "task"),
        ({"group_id": ""}, "group_id"),
        ({"task_id": 3}, "task_id"),
    ],
)
def test_an_opening_that_cannot_be_names_its_field(
    swarm: Swarm, server: FakeServer, arguments: dict[str, object], field: str
) -> None:
    with pytest.raises(RequestError) as caught, swarm.episode(**arguments):  # type: ignore[arg-type]
        pass
    assert caught.value.field == field
    assert server.requests == []


def test_the_server_is_asked_to_hold_an_opening_no_longer_than_there_is_time(clock: FakeClock) -> None:
    def hold(patience_s: float) -> str:
        api = Api("token", "me", 1.0, 1.0, clock)
        want = api.opening(task=1, kind="eval", task_id=None, group_id=None)
        request = next(api.open(want, patience_s))
        return request.body.decode()  # type: ignore[union-attr]

    assert '"wait_s":10.0' in hold(600.0)
    assert '"wait_s":2.0' in hold(2.0)


def test_keys_are_not_shown(clock: FakeClock) -> None:
    assert "secret" not in repr(next(Api("secret", None, 1.0, 1.0, clock).status()))


def test_too_many_metrics_are_refused() -> None:
    with pytest.raises(RewardError) as caught:
        finish_body(1.0, {f"m{number}": 0.0 for number in range(101)})
    assert caught.value.field == "metrics"


def test_kinds() -> None:
    assert kind_of("eval") == "eval"
    with pytest.raises(RequestError, match="'train' or 'eval'"):
        kind_of("dev")
