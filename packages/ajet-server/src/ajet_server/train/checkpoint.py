"""Checkpoint folders that are there as a whole or not at all.

    step-000003/
        manifest.json         step, batch, settings that must match, report; size and SHA-256 of every other file
        adapter/  or  model/  plain peft or transformers folder
        value.safetensors     the critic's head, where there is one
        optimizer.safetensors, optimizer.json, rng.safetensors

A checkpoint is written into a hidden sibling, flushed to the disk and renamed, so no crash leaves half of one under its
name. Before anything is loaded every digest is compared. Nothing is ever unpickled.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec

from ajet_core.config import Job
from ajet_core.errors import ConfigError, DiskFullError, StorageError
from ajet_core.events import StepReport
from ajet_server.datadir import checkpoint_name, checkpoint_steps
from ajet_server.durable import flush_folder, lacks_room, make_folder

FORMAT = 1
"""Version of the folder's layout."""
MANIFEST = "manifest.json"
_UNFINISHED = ".writing-step-"
_BLOCK = 1 << 20
RETRY_S = 10.0
"""How long to wait for room on a full disk before a checkpoint is tried again, seconds."""


class FileEntry(msgspec.Struct, frozen=True):
    """One file of a checkpoint: its size in bytes and its SHA-256 in hexadecimal."""

    size: int
    sha256: str


class Settings(msgspec.Struct, frozen=True):
    """What must be equal in the job that continues: the weights only mean something together with these."""

    model_path: str
    method: str
    lora: dict[str, Any] | None
    value_head: bool = False
    """Whether there is a critic."""

    @classmethod
    def of(cls, job: Job) -> "Settings":
        """Those of a job."""
        lora = None if job.adapter is None else job.adapter.model_dump(mode="json")
        return cls(job.model.path, job.method, lora, job.algorithm.value is not None)


class Manifest(msgspec.Struct, frozen=True):
    """What a checkpoint is."""

    format: int
    step: int
    batch_id: str
    weight_version: int
    job_sha256: str
    """Of the job's JSON. For the reader: a job may change what is not in `settings` between runs."""
    settings: Settings
    report: dict[str, Any]
    """The `StepReport` of the step."""
    files: dict[str, FileEntry]
    """By path inside the folder, with `/`."""

    @classmethod
    def of(cls, job: Job, report: StepReport, files: dict[str, FileEntry]) -> "Manifest":
        """That of a step's checkpoint."""
        return cls(
            format=FORMAT,
            step=report.step,
            batch_id=report.batch_id,
            weight_version=report.weight_version,
            job_sha256=hashlib.sha256(job.model_dump_json().encode()).hexdigest(),
            settings=Settings.of(job),
            report=report.model_dump(mode="json"),
            files=files,
        )


def write_checkpoint(
    directory: Path, step: int, write: Callable[[Path], None], manifest: Callable[[dict[str, FileEntry]], Manifest]
) -> Path:
    """Writes a checkpoint so that it appears at once and complete.

    Args:
        directory: folder of the checkpoints; made if need be.
        step: the step it is of.
        write: writes all files but the manifest into the folder it is given.
        manifest: makes the manifest from the entries of these files. Called when they are on the disk.

    Returns:
        The folder.

    Raises:
        DiskFullError: the disk has no room.
        StorageError: the step has a checkpoint already, or the disk refuses.
    """
    target = directory / checkpoint_name(step)
    if target.exists():
        raise StorageError(
            f"{target} exists already; a checkpoint is never overwritten: move it away to redo step {step}"
        )
    work: Path | None = None
    try:
        make_folder(directory.absolute())
        work = Path(tempfile.mkdtemp(prefix=f"{_UNFINISHED}{step:06d}-", dir=directory))
        write(work)
        content = _sealed(manifest({name: _entry(work / name) for name in _files(work)}))
        (work / MANIFEST).write_bytes(content)
        _flush(work)
        work.rename(target)
        flush_folder(directory)
    except OSError as error:
        message = f"cannot write the checkpoint {target}: {error}"
        if lacks_room(error):
            raise DiskFullError(message, retry_after_s=RETRY_S) from error
        raise StorageError(message) from error
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)
    return target


def read_manifest(folder: Path, part: str = "") -> Manifest:
    """Reads the manifest and compares every file with it.

    Args:
        folder: of the checkpoint.
        part: only the files below this folder of it; by default all.

    Raises:
        StorageError: the folder is no complete checkpoint, or a file is not what was written; names it.
    """
    try:
        manifest = _unsealed(folder)
        found_names = [name for name in _files(folder) if name != MANIFEST and name.startswith(part)]
        entries = {name: _entry(folder / name) for name in found_names}
    except OSError as error:
        raise StorageError(f"cannot read the checkpoint {folder}: {error}") from error
    for name, expected in manifest.files.items():
        if not name.startswith(part):
            continue
        found = entries.get(name)
        if found is None:
            raise StorageError(f"checkpoint {folder}: {name} is missing")
        if found != expected:
            difference = "size" if found.size != expected.size else "SHA-256"
            raise StorageError(f"checkpoint {folder}: {name} is corrupted: its {difference} is not what was written")
    strange = sorted(entries.keys() - manifest.files.keys())
    if strange:
        raise StorageError(f"checkpoint {folder}: {strange[0]} does not belong to it")
    return manifest


def check_settings(folder: Path, manifest: Manifest, wanted: Settings) -> None:
    """Raises `ConfigError` when the checkpoint was made with other settings than the job's."""
    fields = {"model_path": "model.path", "method": "method", "lora": "lora"}
    for name, job_field in fields.items():
        theirs, ours = getattr(manifest.settings, name), getattr(wanted, name)
        if theirs != ours:
            raise ConfigError(
                f"{job_field}: {ours!r}, but the checkpoint {folder} was made with {theirs!r}; "
                "use that value, or another data folder",
                field=job_field,
            )
    if manifest.settings.value_head != wanted.value_head:
        held, why = ("a", "would drop it") if manifest.settings.value_head else ("no", "needs one")
        raise ConfigError(
            f"algorithm.name: the job's baseline {why}, but the checkpoint {folder} has {held} value head (critic); "
            "use an algorithm like the one it was made with, or another data folder",
            field="algorithm.name",
        )


def latest_checkpoint(directory: Path) -> Path | None:
    """Returns the checkpoint of the highest step, if there is one, and removes what interrupted writes left behind."""
    if not directory.is_dir():
        return None
    for leftover in directory.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    return max(_checkpoints(directory), key=_step_of, default=None)


def prune(directory: Path, keep: int, needed: Collection[int] = ()) -> list[Path]:
    """Removes old checkpoints and returns what it removed.

    The newest stays, and the `keep` newest (at least one) whose steps were taken: one that was skipped holds the
    weights of the one before. What a rollback turned away from goes.

    Args:
        directory: folder of the checkpoints.
        keep: see there.
        needed: steps whose checkpoints stay besides.
    """
    folders = sorted(_checkpoints(directory), key=_step_of)
    kept = {*folders[-1:], *_lineage(folders)[-max(keep, 1) :]}
    old = [folder for folder in folders if folder not in kept and _step_of(folder) not in needed]
    for folder in old:
        # Renamed first: a removal that is interrupted must not leave half a checkpoint under a checkpoint's name.
        doomed = folder.with_name(f"{_UNFINISHED}{folder.name}")
        folder.rename(doomed)
        flush_folder(directory)  # or a power cut brings the name back, and not all of the content
        shutil.rmtree(doomed, ignore_errors=True)
    return old


def rollback_target(directory: Path) -> Path | None:
    """The checkpoint before the newest one whose step was taken: the last weights that this step had not touched yet.

    None if it is not there any more, or never was. Weights that a rollback turned away from are no target again: each
    rollback without a step in between goes further back, until there is nothing left to go to.
    """
    lineage = _lineage(sorted(_checkpoints(directory), key=_step_of))
    return lineage[-2] if len(lineage) > 1 else None


def _lineage(folders: list[Path]) -> list[Path]:
    """The checkpoints that the newest weights came from, step by step; of several with equal weights, one."""
    found: list[Path] = []
    for folder in folders:
        report = _unsealed(folder).report
        target: int | None = report.get("rolled_back_to")
        if target is not None:  # it holds that step's weights
            found = [*(older for older in found if _step_of(older) < target), folder]
        elif report.get("optimizer_steps", 1):
            found.append(folder)
    return found


def _checkpoints(directory: Path) -> list[Path]:
    return list(checkpoint_steps(directory).values())


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def _entry(file: Path) -> FileEntry:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return FileEntry(size=file.stat().st_size, sha256=digest.hexdigest())


def _sealed(manifest: Manifest) -> bytes:
    """The manifest as JSON with its own digest, so that damage to it is seen as well."""
    body = msgspec.to_builtins(manifest)
    return json.dumps({"manifest": body, "sha256": _digest(body)}, indent=1, sort_keys=True).encode()


def _digest(body: object) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _unsealed(folder: Path) -> Manifest:
    file = folder / MANIFEST
    if not file.is_file():
        raise StorageError(f"{folder} is no checkpoint: it has no {MANIFEST}")
    try:
        sealed: Any = json.loads(file.read_bytes())
        body: Any = sealed["manifest"]
        if sealed["sha256"] != _digest(body):
            raise ValueError("its digest is not what was written")
        if body["format"] != FORMAT:
            raise ValueError(f"format {body['format']!r}, this version reads {FORMAT}")
        return msgspec.convert(body, Manifest)
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"checkpoint {folder}: {MANIFEST} cannot be used: {error}") from error


def _flush(folder: Path) -> None:
    for name in _files(folder):
        with (folder / name).open("rb") as stream:
            os.fsync(stream.fileno())
    for path in [*(path for path in folder.rglob("*") if path.is_dir()), folder]:
        flush_folder(path)
