"""What a server process is told at its start; everything about training is in the job."""

import ipaddress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ajet_core.config import Job
from ajet_server.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where a server listens and keeps its data.

    Attributes:
        host: address to bind. Anything but loopback makes a token necessary for `/api`.
        port: 0 takes a free one.
        data_dir: ledger, checkpoints, keys; made if it is not there.
        job: the job to start with; None goes on with the folder's job, if it has one.
        max_request_bytes: larger bodies are refused with 413.
        tls: the files of a server that speaks HTTPS; None is clear text.
        require_token: makes a token necessary for `/api` on loopback too, which all users of a machine can reach.
    """

    host: str
    port: int
    data_dir: Path
    job: Job | None = None
    max_request_bytes: int = 8_000_000
    tls: TlsFiles | None = None
    require_token: bool = False

    @property
    def asks_for_token(self) -> bool:
        """True when `/api` is not open to everybody who can connect."""
        return self.require_token or not self.is_loopback

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can connect."""
        return _is_loopback(self.host)


@lru_cache
def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
