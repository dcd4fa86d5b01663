"""What a server process and its data folder take. Linux only.

Memory is what belongs to the process alone. The ledger hardly shows in it: SQLite keeps at most 2 MB of pages for each
of the ledger's three connections, and what the kernel caches of the file is the kernel's.
"""

import os
from dataclasses import dataclass
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_MB = 1e6


@dataclass(frozen=True, slots=True)
class Reading:
    """One look.

    Attributes:
        episodes: that were over.
        seconds: since the first began.
        resident_mb: memory of the API process, beyond what is mapped from files.
        files: that it has open, connections among them.
        ledger_mb: size of the ledger, its journal included.
    """

    episodes: int
    seconds: float
    resident_mb: float
    files: int
    ledger_mb: float


def look(pid: int, data: Path, episodes: int, seconds: float) -> Reading:
    """Reads it now."""
    resident, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[1:3])
    files = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - names only, some are gone a moment later
    ledger = sum(file.stat().st_size for file in data.glob("ledger.sqlite*"))
    return Reading(episodes, round(seconds, 1), (resident - shared) * _PAGE / _MB, files, ledger / _MB)
