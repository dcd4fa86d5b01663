# ruff: noqa: PT012 - what must raise here are whole `with` blocks
import logging
import signal
import socket
import threading
from typing import Any

import httpx2
import pytest

from ajet_client import Swarm
from ajet_client.clock import Clock
from ajet_client.testing import FakeClock, FakeServer
from ajet_client.transport import Stop, StoppedError
from ajet_core.errors import EngineFailedError, EpisodeClosedError, KeyRefusedError, RequestError, UnavailableError
from ajet_core.events import EngineState, Event, StateChanged, UpdateProgress


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Patient(Clock):
    """Its first sleep waits until somebody says go."""

    def __init__(self) -> None:
        self.tried = threading.Event()
        self.go = threading.Event()

    def sleep(self, seconds: float, stop: threading.Event | None = None) -> None:
        self.tried.set()
        assert self.go.wait(10)


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x", "//x"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(RequestError, match="http://") as caught:
        Swarm(url)
    assert caught.value.field == "url"


def test_a_slash_at_the_end_does_no_harm() -> None:
    with Swarm("http://host:1/") as swarm:
        assert repr(swarm) == "<Swarm http://host:1>"


def test_a_server_that_is_down_and_comes_up() -> None:
    clock, port, states = Patient(), free_port(), list[str]()
    with Swarm(f"http://127.0.0.1:{port}", clock=clock) as swarm:
        thread = threading.Thread(target=lambda: states.append(swarm.status().state))
        thread.start()
        assert clock.tried.wait(10)
        with FakeServer().serve(port):
            clock.go.set()
            thread.join(10)
    assert states == ["rolling"]


def test_a_server_that_stays_down_is_named(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with (
        Swarm(url, clock=clock, timeout=5) as swarm,
        caplog.at_level(logging.WARNING, "ajet_client"),
        pytest.raises(UnavailableError, match=f"gave up after 5 s reading the status: no answer from {url}.*refused"),
    ):
        swarm.status()
    assert len(caplog.records) == 1


def test_an_episode_over_a_real_socket_with_cut_connections() -> None:
    with FakeServer().serve() as server, Swarm(server.url, token="admin", clock=FakeClock()) as swarm:
        server.cut("open")
        server.cut("finish")
        server.fail("finish", retry_after_s=0.5)
        with swarm.episode({"question": "?"}) as episode:
            episode.reward(0.5)
        assert server.rewards == [0.5]
        assert server.requests == ["open", "open", "finish", "finish", "finish"]


def test_a_wrong_control_key_is_refused_at_once() -> None:
    with FakeServer().serve() as server, Swarm(server.url) as swarm:
        server.refuse("finish", KeyRefusedError("not yours"))
        with pytest.raises(KeyRefusedError), swarm.episode() as episode:
            episode.reward(1)
        assert server.requests.count("finish") == 1


def test_waiting_for_an_episode_can_be_stopped(swarm: Swarm, server: FakeServer) -> None:
    stop = Stop()
    stop.set()
    with pytest.raises(StoppedError), swarm.episode(stop=stop):
        pass
    assert server.requests == []


def test_a_stop_cuts_what_the_server_holds_and_nothing_else() -> None:
    outcomes: list[object] = []

    def wait_for_an_episode(swarm: Swarm, stop: Stop) -> None:
        try:
            with swarm.episode(stop=stop):
                pass
        except StoppedError as error:
            outcomes.append(error)

    with FakeServer().serve() as server, Swarm(server.url) as swarm:
        stop = Stop()
        with pytest.warns(RuntimeWarning, match="without a reward"), swarm.episode(stop=stop):
            pass  # its connection is kept, and the next opening goes through it
        server.hold("open")
        thread = threading.Thread(target=wait_for_an_episode, args=(swarm, stop))
        thread.start()
        assert server.wait_for("open", 2)
        with swarm.episode() as episode:
            stop.set()
            assert server.wait_until_left(1)
            episode.reward(1)
        thread.join(10)
        stop.close()
    assert [type(outcome) for outcome in outcomes] == [StoppedError]
    assert server.rewards == [1.0]


@pytest.mark.parametrize("opened", [True, False])
def test_an_opening_whose_answer_was_cut_is_taken_back(opened: bool) -> None:
    stop = Stop()
    stop.reason = "the run was stopped: LookupError"
    with FakeServer().serve() as server, Swarm(server.url) as swarm:
        send = stop.send

        def cut(*arguments: Any) -> httpx2.Response:
            if opened:
                send(*arguments)
            stop.set()
            raise httpx2.ReadError("cut")

        stop.send = cut  # type: ignore[method-assign]
        with pytest.raises(StoppedError), swarm.episode("a", stop=stop):
            pass
        stop.close()
    (episode,) = server.episodes
    assert (episode.status, episode.reason) == ("aborted", "the run was stopped: LookupError")


def test_a_stop_that_comes_while_connecting_cuts_too() -> None:
    stop = Stop()
    with FakeServer().serve() as server, Swarm(server.url) as swarm:
        server.hold("open")
        trace = stop._trace

        def late(event: str, info: dict[str, object]) -> None:
            if event.endswith("connect_tcp.complete"):
                stop.set()
            trace(event, info)

        stop._trace = late  # type: ignore[method-assign]
        with pytest.raises(StoppedError), swarm.episode(stop=stop):
            pass
        stop.close()


def test_a_ctrl_c_cuts_the_opening_of_a_single_episode() -> None:
    main = threading.main_thread().ident
    assert main is not None
    with FakeServer().serve() as server, Swarm(server.url) as swarm:
        server.hold("open")

        def interrupt() -> None:
            assert server.wait_for("open", 1)
            signal.pthread_kill(main, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt), swarm.episode():
            pass
        thread.join(10)
        assert server.wait_until_left(1)


def test_a_failed_engine_hands_out_no_episode_and_is_not_waited_for(
    swarm: Swarm, server: FakeServer, clock: FakeClock
) -> None:
    server.state = EngineState.FAILED
    with pytest.raises(EngineFailedError, match="the engine failed: a fake server"), swarm.episode():
        pass
    assert (server.requests, clock.sleeps) == (["open"], [])


@pytest.mark.parametrize("state", [EngineState.OFFLINE, None])
def test_an_engine_that_is_off_is_waited_for_until_the_deadline(
    swarm: Swarm, server: FakeServer, clock: FakeClock, state: EngineState | None
) -> None:
    cause = "no job was set" if state is None else "the engine is offline: a fake server"
    if state is None:
        server.job = None
    else:
        server.state = state
    message = rf"^gave up after \d+ s opening an episode: {cause}"
    with pytest.raises(UnavailableError, match=message), swarm.episode(wait=60.0):
        pass
    assert 50 < clock.time <= 60


def test_a_shutdown_over_a_real_socket() -> None:
    with FakeServer().serve() as server, Swarm(server.url) as swarm:
        swarm.shutdown()
        with pytest.raises(UnavailableError, match=f"^no answer from {server.url}: .*refused"):
            swarm.shutdown()


def state_changed(number: int) -> Event:
    return StateChanged(id=number, state=EngineState.ROLLING, cause="", step=number, weight_version=0)


def test_events_go_on_after_a_break_without_gap_or_repetition(swarm: Swarm, server: FakeServer) -> None:
    for number in (1, 3, 4):
        server.add_event(state_changed(number))
    events = swarm.events()
    assert [next(events).id for _ in range(3)] == [1, 3, 4]
    server.add_event(state_changed(7))
    server.cut("events", acted=False)
    server.fail("events")
    assert next(events).id == 7
    assert next(swarm.events(after=4)).id == 7


def test_events_give_up_at_their_deadline(swarm: Swarm, server: FakeServer, clock: FakeClock) -> None:
    server.add_event(state_changed(1))
    events = swarm.events(timeout=60)
    next(events)
    server.cut("events", times=1000, acted=False)
    with pytest.raises(UnavailableError, match="gave up after 60 s watching the events: no answer"):
        next(events)


def test_a_refusal_of_the_events_is_raised_at_once(swarm: Swarm, server: FakeServer, clock: FakeClock) -> None:
    server.refuse("events", KeyRefusedError("no token"))
    with pytest.raises(KeyRefusedError):
        next(swarm.events())
    assert clock.sleeps == []


def test_events_over_a_real_socket() -> None:
    with FakeServer().serve() as server, Swarm(server.url, clock=FakeClock()) as swarm:
        server.add_event(state_changed(1))
        server.add_event(UpdateProgress(step=1, stage="pack", done=0, total=2))
        server.add_event(state_changed(2))
        events = swarm.events()
        assert [next(events).id for _ in range(2)] == [1, 2]


def test_a_closed_episode_over_a_real_socket() -> None:
    with (
        FakeServer().serve() as server,
        Swarm(server.url) as swarm,
        pytest.raises(EpisodeClosedError, match="its lease ended"),
        swarm.episode() as episode,
    ):
        server.close_episode(episode.id)
        episode.reward(1)


def test_a_workflow_of_two_models() -> None:
    """One agent holds an episode of each, and each is rewarded for itself."""
    with (
        FakeServer().serve() as planner,
        FakeServer().serve() as executor,
        Swarm(planner.url) as first,
        Swarm(executor.url) as second,
        first.episode("plan") as plan,
        second.episode("do") as deed,
    ):
        assert plan.base_url != deed.base_url
        plan.reward(0.25)
        deed.reward(1.0)
    assert (planner.rewards, executor.rewards) == ([0.25], [1.0])
