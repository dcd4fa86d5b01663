"""A program that runs for an agent: its output is bounded in memory, and it ends with everything that it started.

Each child leads a session of its own, so that a Ctrl-C in the terminal reaches only the runner, which ends the child's
whole process group: SIGTERM, a grace, SIGKILL. Whoever waits for a child also moves its bytes (`pump`): there is no
thread for it. POSIX only.
"""

import os
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

_CHUNK = 65_536
_GRACE_S = 2.0
"""How long a group may take to end after SIGTERM, seconds: less than a runner waits for its workers."""
_PUMP_S = 0.05
_LEFT_OVER = 64
"""Chunks that are still read after a program ended; what it wrote fits into one pipe, of 64 kB."""

_living: set["Child"] = set()
_living_lock = threading.Lock()


class Tail:
    """The last bytes of a stream."""

    def __init__(self, limit: int = _CHUNK) -> None:
        self._limit = limit
        self._bytes = bytearray()

    def add(self, data: bytes) -> None:
        """Takes what came, and forgets what came long before."""
        self._bytes += data
        del self._bytes[: -self._limit]

    def clear(self) -> None:
        """Forgets everything."""
        self._bytes.clear()

    @property
    def text(self) -> str:
        """What is kept, as text. Bytes that are no UTF-8 become U+FFFD."""
        return self._bytes.decode("utf-8", errors="replace")


class Child:
    """A running program.

    Args:
        arguments: the program and its arguments; no shell reads them.
        env: its whole environment.
        cwd: its working directory; None: ours.
        stdin: what to write to its standard input before that is closed.
        channel: our end of a socket pair whose other end `inherited` the child gets; what arrives here is `received`.

    Attributes:
        out: the end of its standard output.
        err: the end of its standard error.
        received: what came over the channel and nobody took yet.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        stdin: bytes = b"",
        channel: socket.socket | None = None,
        inherited: Sequence[int] = (),
    ) -> None:
        self._process = subprocess.Popen(
            arguments,
            env=env,
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=inherited,
        )
        with _living_lock:
            _living.add(self)
        self.out, self.err, self.received = Tail(), Tail(), bytearray()
        self._channel = channel
        self._outgoing = bytearray()
        self._selector = selectors.DefaultSelector()
        self._listen()
        if channel is None:
            self.send(stdin)
        else:
            self._stdin.close()

    @property
    def has_ended(self) -> bool:
        """Whether the program ended. It stays a zombie until `end`, so that nobody else can be given its number."""
        if self._process.returncode is not None:
            return True
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def send(self, data: bytes) -> None:
        """Sends bytes over the channel, or to standard input, while it is pumped."""
        self._outgoing += data
        sink = self._sink
        events = selectors.EVENT_WRITE | (selectors.EVENT_READ if sink is self._channel else 0)
        if sink in self._selector.get_map():
            self._selector.modify(sink, events)
        else:
            self._selector.register(sink, events)

    def pump(self, timeout_s: float = _PUMP_S) -> bool:
        """Moves bytes, waiting for some up to `timeout_s` seconds. Returns whether any came."""
        if not self._selector.get_map():
            time.sleep(timeout_s)  # it closed everything and still runs
            return False
        came = False
        for key, events in self._selector.select(timeout_s):
            if events & selectors.EVENT_WRITE:
                self._feed()
            if events & selectors.EVENT_READ:
                came |= self._take(key)
        return came

    def end(self, grace_s: float = _GRACE_S) -> int:
        """Ends the program, if it runs, and all that it left behind. Returns its exit status; -N: by signal N."""
        if not self.has_ended:
            self._signal(signal.SIGTERM)
            until = time.monotonic() + grace_s
            while not self.has_ended and time.monotonic() < until:
                self.pump()
        self._signal(signal.SIGKILL)
        status = self._reap()
        for _ in range(_LEFT_OVER):
            if not self.pump(0):
                break
        self._close()
        return status

    def kill(self) -> None:
        """Sends SIGKILL to the group and waits for nothing. Whoever waits for the child sees that it ended."""
        if self._process.returncode is None:
            self._signal(signal.SIGKILL)

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None  # noqa: S101 - Popen made a pipe
        return self._process.stdin

    @property
    def _sink(self) -> IO[bytes] | socket.socket:
        return self._stdin if self._channel is None else self._channel

    def _listen(self) -> None:
        os.set_blocking(self._stdin.fileno(), False)
        for stream in (self._process.stdout, self._process.stderr, self._channel):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                self._selector.register(stream, selectors.EVENT_READ)

    def _take(self, key: selectors.SelectorKey) -> bool:
        """Reads what came over a stream; at its end the stream is left alone. Returns whether anything came."""
        try:
            data = os.read(key.fd, _CHUNK)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""
        if not data:
            self._selector.unregister(key.fileobj)
        elif key.fileobj is self._channel:
            self.received += data
        else:
            (self.out if key.fileobj is self._process.stdout else self.err).add(data)
        return bool(data)

    def _feed(self) -> None:
        """Writes what is to be sent. Standard input is then closed; so is what the program closed."""
        try:
            del self._outgoing[: os.write(self._sink.fileno(), self._outgoing[:_CHUNK])]
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError):
            self._outgoing.clear()
        if self._outgoing:
            return
        if self._channel is not None:
            self._selector.modify(self._channel, selectors.EVENT_READ)
        else:
            self._selector.unregister(self._stdin)
            self._stdin.close()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):  # macOS: no permission for a group of zombies
            os.killpg(self._process.pid, number)

    def _reap(self) -> int:
        status = self._process.wait()
        with _living_lock:
            _living.discard(self)
        return status

    def _close(self) -> None:
        self._selector.close()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr, self._channel):
            if stream is not None:
                stream.close()


def kill_all() -> None:
    """Kills every child of this process at once; for a runner that has to leave."""
    with _living_lock:
        children = list(_living)
    for child in children:
        child.kill()
