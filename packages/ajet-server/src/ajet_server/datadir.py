"""The data folder of a server: one process at a time, everything that must survive it.

ledger.sqlite     episodes, calls, batches, events
checkpoints/      one folder per step
secret            makes the keys (mode 0600)
admin-token       for all of `/api` when the server does not listen on loopback (mode 0600)
client-token      for opening episodes and looking on, likewise (mode 0600)
server.json       where the running server listens; gone when it ended in order
"""

import json
import os
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import ValidationError

from ajet_core.config import Job
from ajet_core.errors import StorageError
from ajet_server.capture.ledger import peek
from ajet_server.capture.steps import get_meta
from ajet_server.durable import make_folder

_LEDGER = "ledger.sqlite"
_CHECKPOINT = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Content of `server.json`."""

    url: str
    pid: int
    started_at: float


class DataDir:
    """An opened data folder, locked against a second server.

    Raises:
        StorageError: it cannot be made or written, every user may write it, or another server holds it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().resolve()
        try:
            make_folder(self.path, 0o700)
            _refuse_everybodys(self.path)
            make_folder(self.checkpoints)
            self._lock = FileLock(self.path / "lock", timeout=0)
            self._lock.acquire()
            _info_file(self.path).unlink(missing_ok=True)  # left by a server that was killed
        except Timeout:
            raise StorageError(f"data folder {self.path} is in use by another server{self._holder()}") from None
        except OSError as error:
            raise StorageError(f"data folder {self.path} cannot be used: {error}") from error

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def ledger_file(self) -> Path:
        """The SQLite file."""
        return ledger_path(self.path)

    def announce(self, url: str) -> None:
        """Writes `server.json`."""
        info = {"url": url, "pid": os.getpid(), "started_at": time.time()}
        work = self.path / ".server.json"
        work.write_text(json.dumps(info), "utf-8")
        work.replace(_info_file(self.path))

    def close(self) -> None:
        """Removes `server.json` and lets go of the folder."""
        _info_file(self.path).unlink(missing_ok=True)
        self._lock.release()

    def _holder(self) -> str:
        info = read_server_info(self.path)
        return f" (process {info.pid}, {info.url})" if info else ""


def _refuse_everybodys(path: Path) -> None:
    """Who may write the folder may replace the secret that makes the keys, or put a link where a file is written."""
    if path.stat().st_mode & stat.S_IWOTH:
        raise StorageError(f"data folder {path} may be written by every user; take that from them with chmod o-w")


def ledger_path(data_dir: Path) -> Path:
    """Returns where a data folder has its ledger."""
    return data_dir.expanduser() / _LEDGER


def checkpoint_name(step: int) -> str:
    """Returns the folder name of a step's checkpoint, `step-000003`."""
    return f"step-{step:06d}"


def checkpoint_steps(checkpoints: Path) -> dict[int, Path]:
    """Returns the folders of the checkpoints that are there, by their steps."""
    named = ((_CHECKPOINT.fullmatch(folder.name), folder) for folder in checkpoints.iterdir() if folder.is_dir())
    return {int(name[1]): folder for name, folder in named if name}


def stored_job(data_dir: Path) -> Job | None:
    """Returns the job that a data folder was last given, without opening the folder; None if there is none.

    Raises:
        StorageError: the ledger cannot be read, or its job does not suit this ajet.
    """
    file = ledger_path(data_dir)
    return read_job(peek(file, lambda db: get_meta(db, "job")), file) if file.exists() else None


def read_job(text: str | None, file: Path) -> Job | None:
    """Returns the job whose JSON a ledger holds. Raises `StorageError` if it does not suit this ajet."""
    if text is None:
        return None
    try:
        return Job.model_validate_json(text)
    except ValidationError as error:
        raise StorageError(f"the job stored in {file} does not suit this ajet; give one with --job: {error}") from error


def _info_file(path: Path) -> Path:
    return path / "server.json"


def read_server_info(data_dir: Path) -> ServerInfo | None:
    """Returns where the folder's server listens; None when none was announced."""
    try:
        data = json.loads(_info_file(data_dir.expanduser()).read_text("utf-8"))
        return ServerInfo(str(data["url"]), int(data["pid"]), float(data["started_at"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
