"""A worker without a process: the real worker's loop and engine behind the real messages, stepped by a test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np

from ajet_core.errors import EngineFailedError
from ajet_server.engines.torch_engine import TorchEngine
from ajet_server.worker import protocol
from ajet_server.worker.main import Worker
from ajet_server.worker.process import WorkerLostError
from ajet_server.worker.supervisor import Supervisor


class Loopback:
    """Stands for a `WorkerProcess` towards the supervisor, and for the socket towards the worker."""

    def __init__(self, engine: TorchEngine, supervisor: Supervisor) -> None:
        self.lost: asyncio.Future[EngineFailedError] = asyncio.get_running_loop().create_future()
        self.heard_at = 0.0
        self.engine = engine
        self.said: list[protocol.FromWorker] = []
        self._supervisor = supervisor
        self._worker = Worker(self)  # type: ignore[arg-type]
        self._worker._engine = engine

    def sendall(self, data: bytes) -> None:
        message = protocol.read_from_worker(data[protocol.HEADER.size :])
        self.said.append(message)
        self._supervisor._on_message(message)

    def post(self, message: protocol.ToWorker) -> None:
        if not self.lost.done():
            self._worker._inbox.put(protocol.read_to_worker(protocol.frame(message)[protocol.HEADER.size :]))

    async def send(self, message: protocol.ToWorker) -> None:
        self.post(message)

    def step(self) -> None:
        """One turn of the worker's loop."""
        if not self.lost.done():
            if not self._worker._inbox.empty():
                self._worker._serve_inbox()
            self._worker._step()

    def die(self) -> None:
        self.lost.set_result(WorkerLostError("the worker ended: killed by SIGKILL"))


def supervisor_over(engine: TorchEngine) -> tuple[Supervisor, Loopback]:
    """A supervisor whose gate is closed, and its worker."""
    supervisor = Supervisor(60.0, lambda _: None)
    return supervisor, take_over(supervisor, engine)


def take_over(supervisor: Supervisor, engine: TorchEngine) -> Loopback:
    """Has another worker serve the supervisor's calls."""
    worker = Loopback(engine, supervisor)
    supervisor._process = worker  # type: ignore[assignment]
    return worker


@asynccontextmanager
async def turning(worker: Loopback) -> AsyncIterator[None]:
    """The worker's loop runs meanwhile."""

    async def turn() -> None:
        while True:
            worker.step()
            await asyncio.sleep(0)

    task = asyncio.create_task(turn())
    try:
        async with asyncio.timeout(100):
            yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Heard:
    """Takes what is handed on, and checks that nothing is missing, doubled or late."""

    def __init__(self) -> None:
        self.token_ids = b""
        self.logprobs = b""
        self.tops: list[list[tuple[int, float]]] = []
        self.closed = False

    def __call__(self, sampled: protocol.Sampled) -> None:
        assert not self.closed
        assert sampled.token_ids
        assert 4 * sampled.start == len(self.token_ids)
        self.token_ids += sampled.token_ids
        self.logprobs += sampled.logprobs
        self.tops += sampled.top_logprobs

    def __len__(self) -> int:
        return len(self.token_ids) // 4


def generate(name: str, prompt: list[int], max_tokens: int, *, stream: bool, **sampling: object) -> protocol.Generate:
    """A call."""
    ids = np.array(prompt, "<i4").tobytes()
    return protocol.Generate(name, ids, protocol.Sampling(max_tokens=max_tokens, **sampling), stream)
