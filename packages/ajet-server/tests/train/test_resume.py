"""Stopped and continued from a checkpoint, training comes to the same bits as without a stop."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainer_reference import VOCAB, micro_job, mixed_batch, quiet

from ajet_core.config import Job
from ajet_core.events import StepReport
from ajet_server.train.checkpoint import FileEntry, read_manifest
from ajet_server.train.trainer import Trainer

UPDATES = 4
IDS = np.random.default_rng(5).integers(0, VOCAB, 40).astype(np.int32)
METHODS = pytest.mark.parametrize("method", ["lora", "full"])


def demanding_job(folder: Path, method: str, dtype: str = "float32") -> Job:
    """Everything whose state a stop could lose: 4 optimizer steps an update, so it stops in warm-up or in the fall."""
    return micro_job(
        folder,
        method,
        model={"path": str(folder), "device": "cpu", "dtype": dtype},
        algorithm={"kl": {"place": "loss"}, "old_logprobs": "recomputed", "off_policy": {"high": 1.2}},
        optimizer={"learning_rate": 1e-2, "warmup_steps": 6, "schedule": "cosine", "decay_steps": 12},
        trainer={"mini_batches": 2, "epochs": 2},
    )


def updates(trainer: Trainer, first: int, last: int) -> list[StepReport]:
    return [trainer.update(f"b{step}", step, mixed_batch(step), quiet) for step in range(first, last + 1)]


def ended(trainer: Trainer, directory: Path, reports: list[StepReport]) -> tuple[dict[str, FileEntry], list[Any]]:
    """What a training came to, see `digests`; and its reports but for the seconds."""
    folder = trainer.save(directory, reports[-1])
    return digests(folder), [without_seconds(report.model_dump(mode="json")) for report in reports]


def digests(folder: Path) -> dict[str, FileEntry]:
    """Of weights, optimizer and random numbers. peft lists a set in its JSON, in another order in each process."""
    files = read_manifest(folder).files
    kept = {name: entry for name, entry in files.items() if name.endswith(".safetensors") or name == "optimizer.json"}
    assert {"optimizer.safetensors", "optimizer.json", "rng.safetensors"} < kept.keys()
    return kept


def without_seconds(report: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in report.items() if name != "seconds"}


@pytest.mark.parametrize("stop", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@METHODS
def test_a_stop_changes_no_bit(model_folder: Path, tmp_path: Path, method: str, dtype: str, stop: int) -> None:
    job = demanding_job(model_folder, method, dtype)
    straight = Trainer.load(job)
    reports = updates(straight, 1, UPDATES)
    stopped = Trainer.load(job)
    before = updates(stopped, 1, stop)
    resumed = Trainer.load(job, stopped.save(tmp_path / "stopped", before[-1]))
    after = updates(resumed, stop + 1, UPDATES)
    assert ended(straight, tmp_path / "a", reports) == ended(resumed, tmp_path / "b", before + after)
    assert np.array_equal(straight.score(IDS), resumed.score(IDS))


@METHODS
def test_what_could_be_lost_is_at_work(model_folder: Path, method: str) -> None:
    """Else the equality above would say little."""
    reports = updates(Trainer.load(demanding_job(model_folder, method)), 1, UPDATES)
    assert [report.optimizer_steps for report in reports] == [4] * UPDATES
    assert len({report.learning_rate for report in reports}) == UPDATES
    assert all(report.reference_kl > 0 and report.clip_fraction > 0 for report in reports[:-1])
    assert all(0.05 < report.importance_cut < 0.95 for report in reports)


_RESUME = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from test_resume import UPDATES, demanding_job, ended, updates
from ajet_server.train.trainer import Trainer
model, method, stopped, directory = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
trainer = Trainer.load(demanding_job(model, method), stopped)
ended(trainer, directory, updates(trainer, trainer.step + 1, UPDATES))
"""


@METHODS
def test_so_it_is_in_a_fresh_process(model_folder: Path, tmp_path: Path, method: str) -> None:
    trainer = Trainer.load(demanding_job(model_folder, method))
    stopped = trainer.save(tmp_path / "stopped", updates(trainer, 1, 2)[-1])
    files, reports = ended(trainer, tmp_path / "straight", updates(trainer, 3, UPDATES))
    arguments = [model_folder, method, stopped, tmp_path / "resumed"]
    here = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, "-c", _RESUME, *map(str, arguments)], env={**os.environ, "PYTHONPATH": here}, check=True
    )
    resumed = tmp_path / "resumed" / f"step-{UPDATES:06}"
    assert digests(resumed) == files
    assert without_seconds(read_manifest(resumed).report) == reports[-1]
