"""Keeps calls and jobs of the worker across the lives of its process.

Calls wait here, not in the worker: behind a gate that is open while the engine serves. A call that was sent to a worker
that died, or that had to make room for an update, is sent again. What its caller has seen of it stays true: either the
same tokens are sampled again, or the call fails.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from ajet_core.errors import AjetError, EngineFailedError, from_wire
from ajet_server.worker import protocol
from ajet_server.worker.pending import OnSampled, PendingCall
from ajet_server.worker.process import WORKER_COMMAND, WorkerProcess
from ajet_server.worker.protocol import FromWorker

T = TypeVar("T")

_WATCH_EVERY_S = 1.0


class Supervisor:
    """The worker, whichever process it is at the moment.

    Args:
        silence_s: a worker with work that says nothing for this long is killed as hung.
        on_progress: called with every `Progress` of load, update and sync.
        command: starts a worker process.

    Attributes:
        continued: calls that were paused for new weights and went on with them.
        recalled: calls that a worker held and that had to begin again.
    """

    def __init__(
        self,
        silence_s: float,
        on_progress: Callable[[protocol.Progress], None],
        command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        self._silence_s = silence_s
        self._on_progress = on_progress
        self._command = command
        self._process: WorkerProcess | None = None
        self._pending: dict[str, PendingCall] = {}
        self._gate_open = False
        self._reply: asyncio.Future[FromWorker] | None = None
        self._watched = False
        """True while the worker owes a reply that has no deadline of its own but its signs of life."""
        self.continued = 0
        self.recalled = 0
        self._idle = asyncio.Event()
        """Set while the worker runs no call that an update waits for."""
        self._idle.set()

    @property
    def pid(self) -> int | None:
        """Process id of the present worker."""
        return self._process.pid if self._process and not self._process.lost.done() else None

    @property
    def queued(self) -> int:
        """Calls that wait for the gate."""
        return sum(1 for pending in self._pending.values() if not pending.sent)

    @property
    def in_worker(self) -> int:
        """Calls that the worker holds."""
        return sum(1 for pending in self._pending.values() if pending.sent)

    async def start(self, load: protocol.Load, timeout_s: float) -> protocol.Loaded:
        """Starts a worker and has it load the job.

        Raises:
            WorkerRefusedError: the job or its checkpoint cannot be loaded.
            WorkerLostError: the process ended, or did not load within `timeout_s`.
        """
        self._forget_sent("another worker was started")
        if self._process and not self._process.lost.done():
            # It answered with nonsense: two workers would share one GPU and one folder of checkpoints.
            self._process.kill("another one takes over")
            await asyncio.shield(self._process.lost)
        self._process = await WorkerProcess.spawn(self._on_message, self._command)
        answer = await self._ask(load, total_s=timeout_s)
        if not isinstance(answer, protocol.Loaded):
            raise EngineFailedError(f"the worker answered a load with {type(answer).__name__}")
        return answer

    async def update(self, message: protocol.Update) -> protocol.Updated:
        """Has the worker do one step. Raises `WorkerLostError` if it dies or falls silent."""
        answer = await self._ask(message)
        if not isinstance(answer, protocol.Updated):
            raise EngineFailedError(f"the worker answered an update with {type(answer).__name__}")
        return answer

    async def sync(self, weight_version: int, *, keep_calls: bool) -> protocol.Synced:
        """Puts the trainer's weights into the engine. Raises `WorkerLostError` if it dies, or the probe fails.

        Args:
            weight_version: what they are.
            keep_calls: calls that the worker holds go on with them; without it there must be none.
        """
        answer = await self._ask(protocol.Sync(weight_version, keep_calls))
        if not isinstance(answer, protocol.Synced):
            raise EngineFailedError(f"the worker answered a sync with {type(answer).__name__}")
        self.continued += answer.calls_continued
        return answer

    async def generate(
        self, message: protocol.Generate, timeout_s: float, on_sampled: OnSampled | None = None
    ) -> protocol.Generated:
        """Runs one call, waiting for the gate and for new workers as long as `timeout_s` allows.

        Args:
            on_sampled: is handed every token in order, each once, before this returns, and nothing after that; as they
                are sampled if `message.stream`. What it raises ends the call.

        Raises:
            UnavailableError: the time is up, or the call had to begin again and contradicts what was handed on; a retry
                makes sense.
            RequestError: the engine refuses the call.
        """
        pending = PendingCall(message, on_sampled)
        self._pending[message.request_id] = pending
        deadline = asyncio.get_running_loop().call_later(timeout_s, pending.time_out, timeout_s)
        try:
            if self._gate_open:
                self._send(pending)
            return await pending.answer
        finally:
            deadline.cancel()
            self._pending.pop(message.request_id, None)
            self._note_idle()
            if pending.to_be_cancelled and self._process:
                await self._process.send(protocol.Cancel(message.request_id))

    async def open_gate(self) -> None:
        """Lets calls through, those first that wait already."""
        self._gate_open = True
        for pending in self._pending.values():
            self._send(pending)

    async def close_gate(self, patience_s: float) -> None:
        """Holds new calls back and returns when the worker runs none that new weights would change.

        Calls that still run after `patience_s`, and evaluations at once, are taken out of the engine and begin again at
        the next opening. Those that name a weight version stay: it is not touched.
        """
        self._gate_open = False
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._idle.wait()
        await self._recall()

    async def shut_down(self) -> None:
        """Ends the worker."""
        self._gate_open = False
        if self._process:
            await self._process.shut_down()

    def refuse_all(self, error: AjetError) -> None:
        """Answers every waiting call with an error: the engine will not come back by itself."""
        for pending in self._pending.values():
            pending.fail(error)

    async def lost(self) -> EngineFailedError:
        """Returns why, when the present worker is gone. Calls that it held wait for the next one."""
        if self._process is None:
            raise EngineFailedError("no worker was started")
        error = await asyncio.shield(self._process.lost)
        self._forget_sent(error.message)
        return error

    async def while_alive(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits `work`, or raises why the worker was lost, whichever comes first."""
        task = asyncio.create_task(work)
        lost = asyncio.create_task(self.lost())
        try:
            await asyncio.wait({task, lost}, return_when=asyncio.FIRST_COMPLETED)
            if lost.done():
                raise lost.result()
            return task.result()
        finally:
            task.cancel()
            lost.cancel()
            await asyncio.gather(task, lost, return_exceptions=True)

    async def watch(self) -> None:
        """Looks after the worker until it is cancelled."""
        while True:
            await asyncio.sleep(_WATCH_EVERY_S)
            self.end_if_silent()

    def end_if_silent(self) -> None:
        """Kills a worker that has work and says nothing for too long."""
        busy = self._watched or self.in_worker > 0
        process = self._process
        if process and busy and time.monotonic() - process.heard_at > self._silence_s:
            process.kill(f"it said nothing for {self._silence_s:g} s (limits.update_silence_s)")

    async def _ask(self, message: protocol.ToWorker, total_s: float | None = None) -> FromWorker:
        process = self._process
        if process is None:
            raise EngineFailedError("no worker was started")
        self._reply = reply = asyncio.get_running_loop().create_future()
        process.heard_at = time.monotonic()
        self._watched = total_s is None
        await process.send(message)
        try:
            async with asyncio.timeout(total_s):
                await asyncio.wait({reply, process.lost}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            process.kill(f"{type(message).__name__.lower()} took longer than {total_s:g} s")
            await asyncio.shield(process.lost)
        finally:
            self._reply, self._watched = None, False
        if reply.done():
            return reply.result()
        raise process.lost.result()

    def _send(self, pending: PendingCall) -> None:
        process = self._process
        if process is None or process.lost.done() or pending.sent or pending.answer.done():
            return
        if not any(other.sent for other in self._pending.values()):
            process.heard_at = time.monotonic()  # a worker without calls says nothing; its silence counts from here
        pending.sent = True
        if not pending.message.evaluation:
            self._idle.clear()
        process.post(pending.message)

    async def _recall(self) -> None:
        if self._process is None:
            return
        for pending in list(self._pending.values()):
            if pending.sent and pending.message.weights is None:
                self._begin_again(pending, "the engine took new weights")
                await self._process.send(protocol.Cancel(pending.message.request_id))
        self._note_idle()

    def _on_message(self, message: FromWorker) -> None:
        match message:
            case protocol.Streamed():
                self._stream(message)
            case protocol.Generated():
                self._answer(message)
            case protocol.Failed():
                self._refuse(message)
            case protocol.Progress():
                self._on_progress(message)
            case _:
                if self._reply is not None and not self._reply.done():
                    self._reply.set_result(message)

    def _stream(self, message: protocol.Streamed) -> None:
        for sampled in message.calls:
            if pending := self._pending.get(sampled.request_id):
                pending.stream(sampled)

    def _answer(self, message: protocol.Generated) -> None:
        # A call that was recalled may have finished just before the recall reached the engine; it runs again, and this
        # answer, which is as good, is used if it comes first.
        if pending := self._pending.get(message.request_id):
            pending.finish(message)

    def _refuse(self, message: protocol.Failed) -> None:
        if pending := self._pending.get(message.request_id or ""):
            error = {"code": message.code, "message": message.reason, "field": message.field}
            pending.refuse(from_wire(400, {"error": error}))

    def _forget_sent(self, cause: str) -> None:
        self._gate_open = False
        for pending in self._pending.values():
            if pending.sent:
                self._begin_again(pending, cause)
        self._note_idle()

    def _begin_again(self, pending: PendingCall, cause: str) -> None:
        pending.begin_again(cause)
        self.recalled += 1

    def _note_idle(self) -> None:
        if any(pending.sent and not pending.message.evaluation for pending in self._pending.values()):
            self._idle.clear()
        else:
            self._idle.set()
