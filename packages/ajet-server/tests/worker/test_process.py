"""The real worker's process, before it loads anything: it never imports torch here."""

import asyncio
import os
import signal
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.errors import EngineFailedError
from ajet_server.worker import protocol
from ajet_server.worker.process import WorkerLostError, WorkerProcess

pytestmark = pytest.mark.anyio
SAMPLING = protocol.Sampling(max_tokens=1, logit_bias=((3, -0.5), (4, 1.0)), json_schema="{}")


async def why(worker: WorkerProcess) -> EngineFailedError:
    async with asyncio.timeout(20):
        return await worker.lost


async def test_it_ends_when_it_is_told_to() -> None:
    worker = await WorkerProcess.spawn(lambda _: None)
    await worker.shut_down()
    assert str(await why(worker)) == "the worker ended: exit code 0"
    await worker.send(protocol.Cancel("x"))
    await worker.shut_down()


async def test_work_before_a_model_is_a_failure_with_a_reason() -> None:
    worker = await WorkerProcess.spawn(lambda _: None)
    await worker.send(protocol.Sync(1))
    assert "before it was asked to load a model" in str(await why(worker))


async def test_what_the_computation_raises_becomes_a_reason() -> None:
    code = "from ajet_server.worker import main; main.Worker._handle = lambda *_: 1 / 0; raise SystemExit(main.main())"
    worker = await WorkerProcess.spawn(lambda _: None, [sys.executable, "-c", code])
    await worker.send(protocol.Sync(1))
    assert str(await why(worker)) == "the worker failed: ZeroDivisionError: division by zero"


@pytest.mark.parametrize("how", ["closed", "broken", "garbage"])
async def test_it_does_not_outlive_the_api_process(how: str) -> None:
    worker = await WorkerProcess.spawn(lambda _: None)
    match how:
        case "closed":
            worker._writer.close()
        case "broken":
            worker._writer.write(protocol.HEADER.pack(100) + b"half")
            worker._writer.write_eof()
        case _:
            worker._writer.write(protocol.HEADER.pack(3) + b"\xc1\xc1\xc1")
    assert str(await why(worker)) == "the worker ended: exit code 4"


async def test_a_hung_worker_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ajet_server.worker.process._KILL_AFTER_S", 0.1)
    worker = await WorkerProcess.spawn(lambda _: None)
    os.kill(worker.pid, signal.SIGSTOP)
    await worker.shut_down()
    assert "did not end when it was told to" in str(await why(worker))


async def test_a_worker_that_cannot_be_started() -> None:
    with pytest.raises(WorkerLostError, match="could not be started"):
        await WorkerProcess.spawn(lambda _: None, ["/no/such/program"])


async def test_an_exit_is_named() -> None:
    worker = await WorkerProcess.spawn(lambda _: None, [sys.executable, "-c", "raise SystemExit(7)"])
    assert str(await why(worker)) == "the worker ended: exit code 7"


tokens: dict[str, st.SearchStrategy[object]] = {
    "request_id": st.text(st.characters(exclude_categories=["Cs"])),
    "token_ids": st.binary(),
    "logprobs": st.binary(),
    "top_logprobs": st.lists(st.lists(st.tuples(st.integers(0, 2**31), st.floats(-100, 0)))),
}


@given(
    st.builds(
        protocol.Generated,
        **tokens,
        finish_reason=st.sampled_from(["stop", "length"]),
        stop=st.none() | st.just("x"),
        weight_version=st.integers(0, 2**31),
        cached_tokens=st.integers(0, 2**31),
    )
    | st.builds(
        protocol.Streamed, st.lists(st.builds(protocol.Sampled, **tokens, start=st.integers(0, 2**31)), max_size=3)
    )
)
def test_messages_come_back_as_they_were(message: protocol.Generated | protocol.Streamed) -> None:
    framed = protocol.frame(message)
    (length,) = protocol.HEADER.unpack(framed[: protocol.HEADER.size])
    body = framed[protocol.HEADER.size :]
    assert len(body) == length
    assert protocol.read_from_worker(body) == message


@given(st.binary(max_size=50))
def test_what_is_no_message_is_refused(body: bytes) -> None:
    for read in (protocol.read_to_worker, protocol.read_from_worker):
        with pytest.raises(msgspec.MsgspecError):
            read(body)


def test_each_side_refuses_the_messages_of_its_own() -> None:
    message = protocol.Generate("x", b"", SAMPLING, stream=True)
    body = protocol.frame(message)[protocol.HEADER.size :]
    assert protocol.read_to_worker(body) == message
    with pytest.raises(msgspec.ValidationError):
        protocol.read_from_worker(body)
