"""Processes that a benchmark starts and talks to, a line at a time; packages of others in environments of their own."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from threading import Timer
from typing import IO


class ChildError(Exception):
    """The process cannot be started, has ended or takes too long; says why."""


def script_command(script: Path, python: str = sys.executable) -> list[str]:
    """How to run a script in an environment of its own: its header names the packages, `python` is the interpreter.

    Raises:
        ChildError: uv is missing.
    """
    if shutil.which("uv") is None:
        raise ChildError("uv, which makes its environment, is not on the PATH")
    return ["uv", "run", "--quiet", "--no-project", "--python", python, "--script", str(script)]


def find_python(version: str) -> str:
    """Path of another interpreter. pyenv hides those that are not chosen, so it is told to choose.

    Raises:
        ChildError: there is none.
    """
    command = [f"python{version}", "-c", "import sys; print(sys.executable)"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env=os.environ | {"PYENV_VERSION": version}
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise ChildError(f"it needs Python {version}, which is not installed here") from error
    return done.stdout.strip()


class Child:
    """A running process: lines in by `say`, lines out by `answer`; what it says on stderr explains its end."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        self._log: IO[bytes] = TemporaryFile()  # noqa: SIM115  # closed by `stop`
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=os.environ | dict(variables or {}),
            start_new_session=True,  # so that `stop` also ends what uv started
        )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def say(self, line: str) -> None:
        """Sends a line. Raises `ChildError` when the process has ended."""
        assert self._process.stdin is not None
        try:
            print(line, file=self._process.stdin, flush=True)
        except BrokenPipeError as error:
            raise ChildError(self._last_words()) from error

    def answer(self, limit_s: float) -> str:
        """Returns the next line. Raises `ChildError` when the process has ended, or says nothing for `limit_s`."""
        assert self._process.stdout is not None
        expired: list[bool] = []

        def expire() -> None:
            expired.append(True)
            os.killpg(self._process.pid, signal.SIGKILL)

        timer = Timer(limit_s, expire)
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        if expired:
            raise ChildError(f"took more than {limit_s:.0f} s")
        if not line:
            raise ChildError(self._last_words())
        return line

    def check_alive(self) -> None:
        """Raises `ChildError` when the process has ended."""
        if self._process.poll() is not None:
            raise ChildError(self._last_words())

    def stop(self) -> None:
        """Ends the process and its children."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._log.close()

    def _last_words(self) -> str:
        self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"ended with status {self._process.returncode}"
