"""Processes that are started again whenever they end, as a service manager would: the server, and the client."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread

import yaml

_END_S = 60.0
_PAUSE_S = 0.1


class Service:
    """A command that is started again a moment after it has ended, until `stop`.

    Args:
        command: what to run.
        log: where its output goes.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command = command
        self._log = log
        self._lock = Lock()
        self._stopping = False
        self._process = self._start()
        self._keeper = Thread(target=self._keep, daemon=True)
        self._keeper.start()

    def alive(self) -> int:
        """Returns the process id; if it is just being started again, that of the next one."""
        deadline = time.monotonic() + _END_S
        while self._process.poll() is not None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._command} was not started again within {_END_S:g} s")
            time.sleep(_PAUSE_S / 10)
        return self._process.pid

    def stop(self, how: signal.Signals) -> None:
        """Ends it for good. Raises `TimeoutError` if it does not end."""
        with self._lock:
            self._stopping = True
            self._process.send_signal(how)
        self._keeper.join(_END_S)
        if self._keeper.is_alive():
            self._process.kill()
            raise TimeoutError(f"{self._command} did not end within {_END_S:g} s of {how.name}")

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as sink:
            return subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
            )

    def _keep(self) -> None:
        while True:
            self._process.wait()
            time.sleep(_PAUSE_S)
            with self._lock:
                if self._stopping:
                    return
                self._process = self._start()


def server_command(data: Path, job: dict[str, object], port: int) -> list[str]:
    """How a server is started on a port of its own, so that its URL stays."""
    file = data.with_name(f"{data.name}-job.yaml")
    file.write_text(yaml.safe_dump(job), "utf-8")
    start = ["server", "start", "--data-dir", str(data), "--port", str(port), "--job", str(file)]
    return [sys.executable, "-m", "ajet_cli", *start]


def client_command(url: str, journal: Path) -> list[str]:
    """How the agents are started."""
    return [sys.executable, str(Path(__file__).with_name("client.py")), url, str(journal)]


def children(pid: int) -> list[int]:
    """Processes that a process has started and that are there. Linux only."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def send(pids: Sequence[int], what: signal.Signals) -> None:
    """Sends a signal to those that are still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, what)
