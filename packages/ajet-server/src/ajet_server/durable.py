"""What a power cut leaves: entries of a folder are on the disk only once the folder itself was flushed."""

import errno
import os
from pathlib import Path

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def flush_folder(folder: Path) -> None:
    """Waits until the entries of a folder are on the disk: what was made, renamed and removed in it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Makes a folder that stays, and those that it is in. One that is there already is left as it is.

    Args:
        folder: absolute path.
        mode: of the last one, before the process's mask.
    """
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode, exist_ok=True)
    flush_folder(folder.parent)


def lacks_room(error: OSError) -> bool:
    """Whether a write was refused because the disk, the quota or the largest size of a file is used up."""
    return error.errno in _NO_ROOM
