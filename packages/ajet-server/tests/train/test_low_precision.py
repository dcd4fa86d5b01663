"""What is promised in bfloat16, where a gradient is never exact: by each backend, flash-attn too where it can run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_reference import VOCAB, gradients, micro_job, mixed_batch, quiet

from ajet_core.config import Job
from ajet_server.models.supported import Level
from ajet_server.samples.merge import Batch, build_batch
from ajet_server.train.attention import Backend
from ajet_server.train.minibatch import mini_batches
from ajet_server.train.reference import with_old
from ajet_server.train.step import accumulate
from ajet_server.train.trainer import Trainer

BACKENDS = pytest.mark.parametrize(
    "backend", ["rectangles", "segments", pytest.param("flash", marks=pytest.mark.gpu)]
)  # fmt: skip
METHODS = pytest.mark.parametrize("method", ["lora", "full"])


@pytest.fixture
def device(backend: Backend) -> torch.device:
    if backend != "flash":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    pytest.importorskip("flash_attn", reason="flash-attn is not installed", exc_type=ImportError)
    return torch.device("cuda")


def job_of(folder: Path, method: str, device: torch.device, dtype: str, **trainer: Any) -> Job:
    """With more than one epoch the model before the update is what ratios are taken against."""
    model = {"path": str(folder), "device": device.type, "dtype": dtype}
    algorithm = {"old_logprobs": "recomputed" if "epochs" in trainer else "rollout"}
    return micro_job(folder, method, model=model, algorithm=algorithm, trainer={"pack_tokens": 48, **trainer})


def batch_of(job: Job, seed: int) -> Batch:
    return build_batch(mixed_batch(seed), job.algorithm, VOCAB)


def autocast(trainer: Trainer) -> torch.dtype | None:
    """Weights that are trained themselves are float32 always."""
    return torch.bfloat16 if trainer.job.method == "full" and trainer.dtype == torch.bfloat16 else None


def gradient(job: Job, level: Level, seed: int) -> torch.Tensor:
    """Of a whole batch, in one vector of float64."""
    trainer, batch = Trainer.load(job), batch_of(job, seed)
    (mini,) = mini_batches(batch, job, trainer.attention, level, trainer.device)
    assert (mini.tokens == mini.stats.tokens_unmerged) == (level == "calls")
    accumulate(trainer.plain, mini.packs, job.algorithm, quiet, autocast(trainer))
    return torch.cat([grad.double().flatten() for grad in gradients(trainer.model).values()])


@BACKENDS
@METHODS
@pytest.mark.parametrize("seed", range(3))
def test_merging_errs_at_most_twice_as_much_as_calls_alone(
    model_folder: Path, method: str, device: torch.device, backend: Backend, seed: int
) -> None:
    """Both in bfloat16, against each call alone in float32."""
    wanted = gradient(job_of(model_folder, method, device, "float32", sharing="calls"), "calls", seed)
    alone = gradient(job_of(model_folder, method, device, "bfloat16", sharing="calls"), "calls", seed)
    merged = gradient(job_of(model_folder, method, device, "bfloat16", attention=backend), "forest", seed)
    own = (alone - wanted).norm()
    assert own > 1e-4 * wanted.norm()
    assert (merged - wanted).norm() < 2 * own


@BACKENDS
@METHODS
def test_the_ratio_is_exactly_one_when_old_and_new_are_computed_in_the_same_layout(
    model_folder: Path, method: str, device: torch.device, backend: Backend
) -> None:
    job = job_of(model_folder, method, device, "bfloat16", attention=backend, epochs=2)
    trainer, batch = Trainer.load(job), batch_of(job, 0)
    (mini,) = mini_batches(batch, job, trainer.attention, "forest", trainer.device)
    packs = with_old(trainer.plain, mini.packs, autocast(trainer))
    assert len(packs) > 1
    stats = accumulate(trainer.plain, packs, job.algorithm, quiet, autocast(trainer))
    assert float(stats.ratio.lowest) == float(stats.ratio.highest) == 1
