"""Crashes at every flush: the process that dies in `fsync`, and the disk that has kept only what was flushed."""

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest


def killed_at_each_flush(folder: Path, action: Callable[[Path], object]) -> Iterator[Path]:
    """Runs `action` in child processes, on a new folder each; the n-th is killed within its n-th `os.fsync`.

    Yields what each of them leaves behind, until one gets through.
    """
    for number in itertools.count(1):
        place = folder / f"killed-{number}"
        place.mkdir()
        if _gets_through(place, action, number):
            return
        yield place


def _gets_through(place: Path, action: Callable[[Path], object], number: int) -> bool:
    left = itertools.count(number - 1, -1)

    def die_at_last(_: int) -> None:
        if next(left) <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            os.fsync = die_at_last
            action(place)
        except BaseException:  # noqa: BLE001 - nothing of the child may reach pytest
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), "the action failed by itself"
    return status == 0


class Disk:
    """What a power cut would leave of a folder: what was flushed, and nothing else.

    A file has the content of its last `fsync`, a folder the entries of its last one. What is removed may be gone at
    once or come back; `cut` leaves both, for a file system may do either.
    """

    def __init__(self, root: Path, copies: Path) -> None:
        self._root = root
        self._copies = copies
        self._folders: dict[int, dict[str, int]] = {}
        self._files: dict[int, bytes] = {}
        self._held: list[int] = []
        self._fsync = os.fsync
        self._count = 0
        self.moments: list[Path] = []
        """Root folders as a power cut just before each flush would have left them."""
        for path in [root, *root.rglob("*")]:
            self._note(os.open(path, os.O_RDONLY))

    @classmethod
    def watching(cls, root: Path, copies: Path, monkeypatch: pytest.MonkeyPatch) -> Self:
        """A disk that hears of every `os.fsync` from now on."""
        if not Path("/proc/self/fd").is_dir():
            pytest.skip("needs /proc")
        disk = cls(root, copies)
        monkeypatch.setattr(os, "fsync", disk._flush)
        return disk

    def cut(self) -> list[Path]:
        """Returns what a power cut would leave now: with what was removed, and without it."""
        alive = {path.stat().st_ino for path in self._root.rglob("*")}
        self._count += 1
        kept, gone = (self._copies / f"{self._count}-{name}" for name in ("kept", "gone"))
        self._lay_out(self._root.stat().st_ino, kept, None)
        self._lay_out(self._root.stat().st_ino, gone, alive)
        return [kept, gone]

    def _flush(self, descriptor: int) -> None:
        self.moments += self.cut()
        self._fsync(descriptor)
        self._note(os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY))

    def _note(self, descriptor: int) -> None:
        self._held.append(descriptor)  # while it is open, no other file gets its number
        number = os.fstat(descriptor).st_ino
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):  # noqa: PTH112 - a descriptor has no other name
            entries = list(os.scandir(descriptor))
            self._folders[number] = {entry.name: entry.inode() for entry in entries}
            for entry in entries:
                if entry.is_dir():
                    self._folders.setdefault(entry.inode(), {})
        else:
            self._files[number] = os.pread(descriptor, os.fstat(descriptor).st_size, 0)

    def _lay_out(self, folder: int, target: Path, alive: set[int] | None) -> None:
        target.mkdir(parents=True)
        for name, number in self._folders[folder].items():
            if number in self._folders:
                self._lay_out(number, target / name, alive)
            elif alive is None or number in alive:
                (target / name).write_bytes(self._files.get(number, b""))

    def close(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)
