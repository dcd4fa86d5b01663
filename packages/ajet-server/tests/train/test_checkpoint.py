"""Checkpoint folders, without any model."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from ajet_core.errors import ConfigError, StorageError
from ajet_server.train.checkpoint import (
    FORMAT,
    FileEntry,
    Manifest,
    Settings,
    _digest,
    check_settings,
    latest_checkpoint,
    prune,
    read_manifest,
    write_checkpoint,
)

SETTINGS = Settings(model_path="/m", method="lora", lora={"rank": 4})


def manifest(step: int) -> Callable[[dict[str, FileEntry]], Manifest]:
    return lambda files: Manifest(FORMAT, step, f"b{step}", step, "0", SETTINGS, {"loss": 0.5}, files)


def fill(folder: Path) -> None:
    (folder / "adapter").mkdir()
    (folder / "adapter" / "weights").write_bytes(b"weights")
    (folder / "optimizer").write_bytes(b"moments")


def write(directory: Path, step: int = 3) -> Path:
    return write_checkpoint(directory, step, fill, manifest(step))


def test_round_trip(tmp_path: Path) -> None:
    folder = write(tmp_path / "new")
    assert folder.name == "step-000003"
    read = read_manifest(folder)
    assert read == manifest(3)(read.files)
    assert set(read.files) == {"adapter/weights", "optimizer"}
    assert [path.name for path in folder.parent.iterdir()] == ["step-000003"]


def test_latest_and_prune_go_by_number_and_leftovers_are_removed(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "none") is None
    assert latest_checkpoint(tmp_path) is None
    for step in (9, 10, 1_000_000):
        write(tmp_path, step)
    (tmp_path / ".writing-step-000011-x").mkdir()
    (tmp_path / "step-999999999.bak").mkdir()
    (tmp_path / "other").mkdir()
    latest = latest_checkpoint(tmp_path)
    assert latest is not None
    assert latest.name == "step-1000000"
    assert not (tmp_path / ".writing-step-000011-x").exists()
    assert [folder.name for folder in prune(tmp_path, 2)] == ["step-000009"]
    assert {path.name for path in tmp_path.iterdir()} == {"step-000010", "step-1000000", "step-999999999.bak", "other"}
    assert prune(tmp_path, 0)
    assert latest_checkpoint(tmp_path) == latest


@pytest.mark.parametrize("name", ["adapter/weights", "optimizer", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "grow", "remove"])
def test_damage_is_named(tmp_path: Path, name: str, damage: str) -> None:
    file = write(tmp_path) / name
    data = file.read_bytes()
    if damage == "remove":
        file.unlink()
    else:
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        file.write_bytes({"flip": flipped, "truncate": data[:-1], "grow": data + b"x"}[damage])
    with pytest.raises(StorageError, match=file.name):
        read_manifest(tmp_path / "step-000003")


def test_every_flipped_byte_of_the_manifest_is_noticed(tmp_path: Path) -> None:
    file = write(tmp_path) / "manifest.json"
    data = file.read_bytes()
    for at in range(len(data)):
        if chr(data[at]).isspace():
            continue  # white space means nothing
        file.write_bytes(data[:at] + bytes([data[at] ^ 2]) + data[at + 1 :])
        with pytest.raises(StorageError, match=r"manifest\.json"):
            read_manifest(file.parent)


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "extra").write_text("x")
    with pytest.raises(StorageError, match="extra does not belong"):
        read_manifest(folder)
    with pytest.raises(StorageError, match="no checkpoint"):
        read_manifest(tmp_path)
    with pytest.raises(StorageError, match="no checkpoint"):
        read_manifest(tmp_path / "missing")


def test_a_later_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path)
    monkeypatch.setattr("ajet_server.train.checkpoint.FORMAT", FORMAT + 1)
    with pytest.raises(StorageError, match="format"):
        read_manifest(folder)


@pytest.mark.parametrize("point", ["write", "fsync", "rename"])
def test_an_interrupted_write_leaves_nothing_under_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    write(tmp_path, 1)

    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if point != "write":
            patch.setattr(os, point, fail)
        with pytest.raises(StorageError, match=r"step-000002.*No space"):
            write_checkpoint(tmp_path, 2, fail if point == "write" else fill, manifest(2))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]
    assert read_manifest(write(tmp_path, 2)).step == 2


def test_everything_is_flushed_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    rename, fsync = os.rename, os.fsync

    def record_fsync(descriptor: int) -> None:
        events.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def record_rename(source: Path, target: Path) -> None:
        events.append("rename")
        rename(source, target)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc")
    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "rename", record_rename)
    write(tmp_path)
    before, after = events[: events.index("rename")], events[events.index("rename") + 1 :]
    assert {"weights", "optimizer", "manifest.json", "adapter"} <= set(before)
    assert any(name.startswith(".writing-step-000003") for name in before)
    assert after == [tmp_path.name]


def test_a_checkpoint_is_never_overwritten(tmp_path: Path) -> None:
    folder = write(tmp_path)
    with pytest.raises(StorageError, match="exists already"):
        write(tmp_path)
    assert read_manifest(folder)
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"model_path": "/other"}, "model.path"), ({"method": "full"}, "method"), ({"lora": {"rank": 8}}, "lora")],
)
def test_foreign_settings(tmp_path: Path, changes: dict[str, object], field: str) -> None:
    folder = write(tmp_path)
    fields = {"model_path": "/m", "method": "lora", "lora": {"rank": 4}}
    check_settings(folder, read_manifest(folder), SETTINGS)
    with pytest.raises(ConfigError, match=field) as caught:
        check_settings(folder, read_manifest(folder), Settings(**(fields | changes)))  # pyright: ignore[reportArgumentType]
    assert caught.value.field == field


@pytest.mark.parametrize(("theirs", "said"), [(True, "has a value head"), (False, "has no value head")])
def test_a_critic_comes_and_goes_with_its_checkpoint(tmp_path: Path, theirs: bool, said: str) -> None:
    settings = replace(SETTINGS, value_head=theirs)
    folder = write_checkpoint(tmp_path, 3, fill, lambda files: replace(manifest(3)(files), settings=settings))
    check_settings(folder, read_manifest(folder), settings)
    with pytest.raises(ConfigError, match=rf"algorithm\.name.*{said}") as caught:
        check_settings(folder, read_manifest(folder), replace(SETTINGS, value_head=not theirs))
    assert caught.value.field == "algorithm.name"


def test_a_checkpoint_from_before_there_were_critics_has_none(tmp_path: Path) -> None:
    file = write(tmp_path) / "manifest.json"
    body = json.loads(file.read_text())["manifest"]
    del body["settings"]["value_head"]
    file.write_text(json.dumps({"manifest": body, "sha256": _digest(body)}))
    assert read_manifest(file.parent).settings == SETTINGS


def test_the_manifest_is_plain_json(tmp_path: Path) -> None:
    body = json.loads((write(tmp_path) / "manifest.json").read_text())["manifest"]
    assert body["batch_id"] == "b3"
    assert body["files"]["adapter/weights"]["size"] == 7
