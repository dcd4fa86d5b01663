"""flash-attn on a GPU does what one SDPA call per segment does, to rounding."""

from pathlib import Path

import numpy as np
import pytest
import torch
from trainer_reference import VOCAB, dense, forked_pack, gradients, micro_job, mixed_batch, quiet

from ajet_core.config import ModelConfig
from ajet_merge import Forest, merge
from ajet_server.models.load import load_causal_lm
from ajet_server.samples.merge import Batch, build_batch
from ajet_server.train.attention import ATTENTION, Backend, PackLayout, attend, choose_backend
from ajet_server.train.forward import PackTensors, occurrence_logprobs
from ajet_server.train.step import accumulate

DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
pytestmark = pytest.mark.gpu


@pytest.fixture
def gpu() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    pytest.importorskip("flash_attn", reason="flash-attn is not installed", exc_type=ImportError)
    return torch.device("cuda")


def distance(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    """Norm of the difference over the norm of all that is wanted."""
    assert found.keys() == wanted.keys()
    off = torch.stack([(found[name].double() - wanted[name].double()).norm() for name in wanted]).norm()
    return float(off / torch.stack([tensor.double().norm() for tensor in wanted.values()]).norm())


def test_it_is_chosen(gpu: torch.device) -> None:
    assert choose_backend(gpu) == "flash"


@DTYPES
@pytest.mark.parametrize("seed", range(3))
def test_one_layer(gpu: torch.device, dtype: torch.dtype, seed: int) -> None:
    """Its error against float64 is no larger than that of the other backend, give or take rounding."""
    pack = forked_pack(seed)
    torch.manual_seed(0)
    exact = [torch.randn(1, heads, pack.num_tokens, 32, dtype=torch.float64).to(dtype).double() for heads in (4, 2, 2)]
    upstream = torch.randn(1, pack.num_tokens, 4, 32, dtype=torch.float64).to(dtype).double()

    def run(backend: Backend | None) -> dict[str, torch.Tensor]:
        inputs = [x.to(gpu, None if backend is None else dtype).requires_grad_() for x in exact]
        if backend is None:
            output = dense_on(gpu, *inputs)
        else:
            output, _ = attend(
                torch.nn.Identity(), *inputs, None, scaling=0.3, pack_layout=PackLayout.of(pack, backend, gpu)
            )
        grads = torch.autograd.grad(output, inputs, upstream.to(output))
        return dict(zip(("output", "query", "key", "value"), (output.detach(), *grads), strict=True))

    def dense_on(device: torch.device, *inputs: torch.Tensor) -> torch.Tensor:
        return dense(pack, *(x.cpu() for x in inputs)).to(device)

    wanted, segments, flash = run(None), run("segments"), run("flash")
    for name in wanted:
        error, usual = (distance({name: found[name]}, {name: wanted[name]}) for found in (flash, segments))
        assert error < 2 * usual + torch.finfo(dtype).eps, name


@DTYPES
def test_a_whole_model(gpu: torch.device, dtype: torch.dtype, model_folder: Path) -> None:
    """Log-probabilities and gradients of the same packs, both against float32."""
    algorithm = micro_job(model_folder).algorithm
    batch = build_batch(mixed_batch(4), algorithm, VOCAB)
    forest = merge(batch.calls)

    def run(number: torch.dtype, backend: Backend) -> dict[str, torch.Tensor]:
        model = load_causal_lm(ModelConfig(path=str(model_folder), device=gpu.type), ATTENTION).to(number)
        packs = packs_of(forest, batch, backend, gpu)
        with torch.no_grad():
            logprobs = torch.cat([occurrence_logprobs(model, pack)[0] for pack in packs])
        accumulate(model, packs, algorithm, quiet)
        return {"logprobs": logprobs} | gradients(model)

    wanted = run(torch.float32, "segments")
    segments, flash = run(dtype, "segments"), run(dtype, "flash")
    assert len(wanted) > 20
    largest = (flash["logprobs"] - wanted["logprobs"]).abs().max()
    assert largest < 2 * (segments["logprobs"] - wanted["logprobs"]).abs().max() + 1e-2
    for found in (wanted, segments, flash):
        del found["logprobs"]
    assert distance(flash, wanted) < 1.5 * distance(segments, wanted) + 1e-3


def packs_of(forest: Forest, batch: Batch, backend: Backend, device: torch.device) -> list[PackTensors]:
    temperature_M = batch.temperatures[forest.occurrences.call]
    packs = [pack for pack in forest.packs(48) if pack.occ_index.size]
    assert len(packs) > 1
    return [PackTensors.of(p, np.take(temperature_M, p.occ_index), backend, 16, device) for p in packs]
