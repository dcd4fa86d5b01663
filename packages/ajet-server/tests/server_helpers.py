"""A server over a fake worker: a model folder without a model, a job, and what an agent and a client do."""

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import uvicorn

from ajet_core.config import Job
from ajet_core.events import EngineState
from ajet_core.ids import new_request_id
from ajet_core.wire import EpisodeView, FinishEpisode, OpenEpisode
from ajet_server.app import build_app
from ajet_server.capture.calls import WholeCall, whole_calls
from ajet_server.capture.records import EpisodeRecord
from ajet_server.connection import BoundedProtocol
from ajet_server.episodes.book import OpenState
from ajet_server.gateway.request import Answer, ChatRequest, Conversation, Message
from ajet_server.gateway.runs import Run
from ajet_server.gateway.session import Origin
from ajet_server.settings import ServerSettings
from ajet_server.wiring import Server


class WorkerFolder:
    """The folder of a `fake_worker`: its log, its faults."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        script = Path(__file__).with_name("fake_worker.py")
        self.command = (sys.executable, str(script), "--folder", str(folder))

    def fault(self, kind: str, what: str) -> None:
        """At the next message of this type, this goes wrong."""
        self._put(f"fault-{kind}", what)

    def hold(self, after: int = 0) -> None:
        """Holds answers back from now on. `after`: how many tokens of each are streamed nevertheless."""
        self._put("hold", str(after))

    def hold_update(self) -> None:
        """Holds the end of updates back from now on."""
        self._put("hold-update", "")

    def release_update(self) -> None:
        (self.folder / "hold-update").unlink()

    def say(self, *answers: dict[str, Any]) -> None:
        """What the next calls sample (fields of `fake_worker.Said`), one after the other, and the last one for ever."""
        self._put("answers", "\n".join(map(json.dumps, answers)))

    def release(self) -> None:
        (self.folder / "hold").unlink()

    def _put(self, name: str, content: str) -> None:
        work = self.folder / f".{name}"
        work.write_text(content)
        work.replace(self.folder / name)

    def log(self, kind: str) -> list[dict[str, Any]]:
        """What it received, or wrote, of one type."""
        file = self.folder / "log"
        lines = file.read_text().splitlines() if file.exists() else []
        return [entry for entry in map(json.loads, lines) if entry["kind"] == kind]


def make_job(model: Path, **sections: Any) -> Job:
    """A job whose batch is one episode, unless told otherwise."""
    batch = {"policy": "episodes", "size": 1} | sections.pop("batch", {})
    return Job.model_validate({"model": {"path": str(model), "served_name": "tiny"}, "batch": batch, **sections})


@dataclass
class Running:
    """A server whose engine was started."""

    server: Server
    worker: WorkerFolder

    @property
    def state(self) -> EngineState:
        return self.server.state

    async def reach(self, state: EngineState, *, step: int = 0) -> None:
        """Waits until the server is in `state` after at least `step` steps."""
        conductor = self.server.runtime.conductor
        await until(lambda: conductor.state is state and conductor.batches.step >= step, lambda: conductor.cause)

    async def open(self, **fields: Any) -> EpisodeRecord:
        runtime = self.server.runtime
        body = OpenEpisode(**{"request_id": new_request_id(), "task": "a task", **fields})
        return await runtime.episodes.open(body, lambda: runtime.conductor.weight_version, runtime.conductor.admit)

    def state_of(self, record: EpisodeRecord) -> OpenState:
        """The open episode, as its agent's key finds it."""
        return self.server.runtime.episodes.agent(self.server.keys.key(record.attempt_id, "agent"))

    async def run(
        self, record: EpisodeRecord, request: ChatRequest, *, retry: bool = False, stream: bool = False
    ) -> Run:
        """Begins a call. Equal requests have equal digests."""
        origin = Origin("chat", repr(request).encode(), retry)
        return await self.server.runtime.gateway.run(self.state_of(record), request, origin, stream=stream)

    async def chat(self, record: EpisodeRecord, **changes: Any) -> Answer:
        return await answer_of(await self.run(record, ask(**changes)))

    def calls(self, record: EpisodeRecord) -> list[WholeCall]:
        """The recorded calls."""
        return self.server.ledger.read_now(lambda db: whole_calls(db, record.id))

    async def finish(self, record: EpisodeRecord, reward: float = 1.0) -> EpisodeView:
        return await self.server.runtime.episodes.finish(record.id, FinishEpisode(reward=reward))

    async def rollout(self, reward: float = 1.0, **fields: Any) -> EpisodeRecord:
        """One episode of one call."""
        record = await self.open(**fields)
        await self.chat(record)
        await self.finish(record, reward)
        return record

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Every event of a type, from the ledger."""
        rows = self.server.ledger.read_now(
            lambda db: db.execute("SELECT data FROM events WHERE type = ? ORDER BY id", (kind,)).fetchall()
        )
        return [json.loads(row["data"]) for row in rows]


def ask(messages: list[Message] | None = None, **fields: Any) -> ChatRequest:
    """A conversation, of one message by default."""
    prompt = Conversation(messages or [{"role": "user", "content": "hello"}])
    return ChatRequest(**{"model": "tiny", "prompt": prompt, "max_tokens": 8} | fields)


async def until(condition: Callable[[], bool], why: Callable[[], object] = lambda: "", timeout_s: float = 20) -> None:
    """Polls until `condition` holds."""
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"it never came true; {why()}") from None


@asynccontextmanager
async def running(folder: Path, model: Path, **sections: Any) -> AsyncIterator[Running]:
    """A server with a job, started, without HTTP."""
    worker = WorkerFolder(folder / "worker")
    settings = ServerSettings("127.0.0.1", 0, folder / "data", make_job(model, **sections))
    server = Server(settings, worker.command)
    try:
        server.start()
        yield Running(server, worker)
    finally:
        await server.close()


async def answer_of(run: Run) -> Answer:
    """Waits for the whole answer, and never leaves."""
    answer = await run.answer(_forever())
    assert answer is not None
    return answer


async def _forever() -> Literal[True]:
    await asyncio.Event().wait()
    return True


@contextmanager
def listening(server: Server) -> Iterator[str]:
    """The server's app over HTTP in a thread; yields its URL."""
    config = uvicorn.Config(
        build_app(server),
        port=0,
        log_level="critical",
        timeout_graceful_shutdown=2,
        proxy_headers=False,
        http=BoundedProtocol,
    )
    http = _Http(config, server)
    thread = threading.Thread(target=http.run, name="http")
    thread.start()
    try:
        assert http.ready.wait(20)
        port = http.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        http.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


class _Http(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self._server = server
        self.ready = threading.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals belong to the main thread

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def shutdown(self, sockets: Any = None) -> None:
        await self._server.events.close()
        await super().shutdown(sockets)
