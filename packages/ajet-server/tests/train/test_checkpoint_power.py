"""Checkpoints survive `kill -9` within any flush and a power cut: each is there as a whole or not at all."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from power import Disk, killed_at_each_flush

from ajet_server.train.checkpoint import (
    FORMAT,
    Manifest,
    Settings,
    latest_checkpoint,
    prune,
    read_manifest,
    rollback_target,
    write_checkpoint,
)

MANIFEST = Manifest(FORMAT, 0, "b", 0, "0", Settings("/m", "full", None), {"optimizer_steps": 1}, {})


def write(directory: Path, step: int) -> None:
    def fill(folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / "model" / "weights").write_bytes(b"w" * 100)
        (folder / "optimizer").write_bytes(b"moments")

    write_checkpoint(directory, step, fill, lambda files: replace(MANIFEST, step=step, files=files))


def save(place: Path) -> None:
    """What a worker does after its third step."""
    for step in (1, 2):
        write(place / "checkpoints", step)
    write(place / "checkpoints", 3)
    prune(place / "checkpoints", 2)


def newest(place: Path) -> int:
    """The step that a worker goes on from. Every checkpoint must be whole, for a rollback may need it."""
    directory = place / "checkpoints"
    latest = latest_checkpoint(directory)
    rollback_target(directory) if latest else None
    assert all(read_manifest(folder) for folder in directory.glob("*"))
    return 0 if latest is None else read_manifest(latest).step


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    (tmp_path / "root").mkdir()
    found = Disk.watching(tmp_path / "root", tmp_path / "copies", monkeypatch)
    yield found
    found.close()


def test_a_worker_killed_while_it_saves(tmp_path: Path) -> None:
    steps = [newest(place) for place in killed_at_each_flush(tmp_path, save)]
    assert steps == sorted(steps), "later deaths leave later steps"
    assert {0, 1, 2, 3} == set(steps)


def test_the_step_after_a_death_is_done_again(tmp_path: Path) -> None:
    for place in killed_at_each_flush(tmp_path, save):
        write(place / "checkpoints", newest(place) + 1)


def test_a_checkpoint_that_was_told_survives_a_power_cut(tmp_path: Path, disk: Disk) -> None:
    for step in (1, 2, 3):
        write(tmp_path / "root" / "checkpoints", step)
        assert [newest(place) for place in disk.cut()] == [step, step]


def test_a_power_cut_at_any_flush_leaves_whole_checkpoints(tmp_path: Path, disk: Disk) -> None:
    save(tmp_path / "root")
    moments = [*disk.moments, *disk.cut()]
    steps = [newest(place) for place in moments]
    assert steps == sorted(steps)
    assert steps[-1] == 3


def test_a_checkpoint_that_is_removed_is_no_half_one_after_a_power_cut(tmp_path: Path, disk: Disk) -> None:
    save(tmp_path / "root")
    for place in disk.cut():
        assert newest(place) == 3
        assert not (place / "checkpoints" / "step-000001").exists()
