"""One life of a worker process, seen from the API process."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence

import msgspec

from ajet_core.errors import DiskFullError, EngineFailedError
from ajet_server.joined_writes import JoinedWrites
from ajet_server.worker import protocol
from ajet_server.worker.protocol import FromWorker, ToWorker

_KILL_AFTER_S = 5.0
_MOST_READ = 1 << 20
"""Bytes at a time."""
_ENVIRONMENT = {"GOMP_SPINCOUNT": "20000"}
"""torch's OpenMP threads wait for each other by spinning, by default for milliseconds. On a machine with any other busy
process, an update then takes ten times as long; at this count it does not, and alone it is as fast."""
WORKER_COMMAND = (sys.executable, "-m", "ajet_server.worker.main")
"""Starts the worker; `--fd N` is added, one end of a socket pair."""


class WorkerLostError(EngineFailedError):
    """The worker process ended or was ended; the message says why. Another one may take over."""


class WorkerOutOfRoomError(WorkerLostError):
    """The worker could not write: the disk is full. Another one may, once there is room."""


class WorkerRefusedError(EngineFailedError):
    """The worker said that it cannot work (a wrong model, a corrupted checkpoint): another one could not either."""


class WorkerProcess:
    """A running worker. `on_message` gets everything it says; `lost` is set once it is gone."""

    def __init__(
        self, process: asyncio.subprocess.Process, stream: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._stream = stream
        self._writer = writer
        self._joined = JoinedWrites(writer.transport, asyncio.get_running_loop())
        self._failure: protocol.Failed | None = None
        self._killed_because: str | None = None
        self.lost: asyncio.Future[EngineFailedError] = asyncio.get_running_loop().create_future()
        self.heard_at = time.monotonic()

    @classmethod
    async def spawn(
        cls, on_message: Callable[[FromWorker], None], command: Sequence[str] = WORKER_COMMAND
    ) -> "WorkerProcess":
        """Starts a worker in a session of its own, so that a Ctrl-C at the terminal reaches the API process alone.

        Raises:
            WorkerLostError: the operating system refused to start it.
        """
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                # The stream first: once the process runs, nothing is awaited before somebody owns it.
                stream, writer = await asyncio.open_connection(sock=ours, limit=protocol.MAX_FRAME)
                process = await _start([*command, "--fd", str(theirs.fileno())], theirs.fileno(), writer)
        except OSError as error:
            raise WorkerLostError(f"the worker could not be started: {error}") from error
        worker = cls(process, stream, writer)
        worker._reading = asyncio.create_task(worker._read(on_message), name="worker-messages")
        return worker

    _reading: asyncio.Task[None]

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def post(self, message: ToWorker) -> None:
        """Sends a message in a while. A worker that is gone is not an error here: `lost` tells.

        What a slow worker has not taken yet waits in memory; for calls, this is what their callers hold anyway.
        """
        if not self.lost.done():
            self._joined.write(protocol.frame(message))

    async def send(self, message: ToWorker) -> None:
        """Sends a message, and waits for a worker that is slow to take what it is sent."""
        self.post(message)
        try:
            await self._writer.drain()
        except ConnectionError:
            return  # the reading side finds the cause and sets `lost`

    def kill(self, because: str) -> None:
        """Ends a worker that does not answer; `lost` then carries `because`."""
        self._killed_because = because
        if self._process.returncode is None:
            self._process.kill()

    async def shut_down(self) -> None:
        """Asks the worker to end, waits for it, and kills it if it does not."""
        try:
            async with asyncio.timeout(_KILL_AFTER_S):
                await self.send(protocol.Shutdown())
                await self._process.wait()
        except TimeoutError:
            self.kill("it did not end when it was told to")
        await self._reading

    async def _read(self, on_message: Callable[[FromWorker], None]) -> None:
        try:
            buffer = bytearray()
            while received := await self._stream.read(_MOST_READ):
                buffer += received
                for body in protocol.take_frames(buffer):
                    self._hear(protocol.read_from_worker(body), on_message)
        except ConnectionError:
            pass  # the stream ends with the process, whose exit says more
        except (protocol.FrameError, msgspec.MsgspecError) as error:
            self.kill(f"it sent what is no message: {error}")
        finally:
            code = await self._process.wait()
            self._writer.close()
            self.lost.set_result(self._why(code))

    def _hear(self, message: FromWorker, on_message: Callable[[FromWorker], None]) -> None:
        self.heard_at = time.monotonic()
        if isinstance(message, protocol.Failed) and message.request_id is None:
            self._failure = message
        else:
            on_message(message)

    def _why(self, code: int) -> EngineFailedError:
        if self._killed_because:
            return WorkerLostError(f"the worker was ended: {self._killed_because}")
        if self._failure and self._failure.code == DiskFullError.code:
            return WorkerOutOfRoomError(self._failure.reason.split(": ", 1)[-1])
        if self._failure and self._failure.code != EngineFailedError.code:
            return WorkerRefusedError(self._failure.reason.split(": ", 1)[-1])
        if self._failure:
            return WorkerLostError(f"the worker failed: {self._failure.reason}")
        return WorkerLostError(f"the worker ended: {_exit_words(code)}")


async def _start(command: list[str], fd: int, writer: asyncio.StreamWriter) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            pass_fds=(fd,),
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            env={**_ENVIRONMENT, **os.environ},
        )
    except BaseException:
        writer.close()
        raise


def _exit_words(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    hint = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"killed by {name}{hint}"
