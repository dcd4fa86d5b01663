"""Starts a server as a process of its own and finds it again."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ajet_core.errors import EngineFailedError

_LISTEN_TIMEOUT_S = 300.0  # a server checks its whole ledger before it listens


@dataclass(frozen=True, slots=True)
class SpawnedServer:
    """A server process that listens."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path


def spawn_server(data_dir: Path, arguments: Sequence[str]) -> SpawnedServer:
    """Starts `ajet server start` in the background and returns once it listens.

    Raises:
        EngineFailedError: it ended, or did not listen in time; quotes the end of its log.
    """
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = data_dir / "server.log"
    command = [sys.executable, "-m", "ajet_cli", "server", "start", "--data-dir", str(data_dir), *arguments]
    with open(log, "ab", opener=_open_private) as sink:
        begin = sink.tell()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
        )
    deadline = time.monotonic() + _LISTEN_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise EngineFailedError(f"the server ended at once: {_tail(log, begin)}")
        info = _read_info(data_dir)
        if info and info.get("pid") == process.pid:
            return SpawnedServer(str(info["url"]), process, log)
        time.sleep(0.05)
    process.kill()
    raise EngineFailedError(f"the server did not listen within {_LISTEN_TIMEOUT_S:g} s: {_tail(log, begin)}")


def _open_private(path: str, flags: int) -> int:
    """Makes a file that only its owner may read, and follows no link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def read_url(data_dir: Path) -> str | None:
    """Returns the URL of the server that runs in a data folder, None if none was announced there."""
    info = _read_info(data_dir)
    return str(info["url"]) if info else None


def read_token(data_dir: Path) -> str | None:
    """Returns the admin token in a data folder, None where there is none or it is another user's."""
    try:
        return (data_dir / "admin-token").read_text("utf-8").strip()
    except OSError:
        return None


def _read_info(data_dir: Path) -> dict[str, object] | None:
    try:
        info = json.loads((data_dir / "server.json").read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return info if isinstance(info, dict) and "url" in info else None


def _tail(log: Path, begin: int) -> str:
    """Returns the last line that this start wrote."""
    lines = log.read_bytes()[begin:].decode("utf-8", errors="replace").strip().splitlines()
    return lines[-1].removeprefix("error: ") if lines else "no output"
