"""On a GPU flash-attn and rectangles do what one SDPA call per segment does, to rounding."""

from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_reference import VOCAB, forked_pack, gradients, micro_job, mixed_batch, quiet

from ajet_core.config import ModelConfig
from ajet_core.errors import ConfigError
from ajet_merge import Forest, merge
from ajet_server.models.load import load_causal_lm
from ajet_server.samples.merge import Batch, build_batch
from ajet_server.train.attention import ATTENTION, Backend, PackLayout, attend, choose_backend
from ajet_server.train.forward import PackTensors, occurrence_logprobs
from ajet_server.train.step import accumulate

DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
pytestmark = pytest.mark.gpu


@pytest.fixture
def any_gpu() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    return torch.device("cuda")


@pytest.fixture
def gpu(any_gpu: torch.device) -> torch.device:
    pytest.importorskip("flash_attn", reason="flash-attn is not installed", exc_type=ImportError)
    return any_gpu


def distance(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    """Norm of the difference over the norm of all that is wanted."""
    assert found.keys() == wanted.keys()
    off = torch.stack([(found[name].double() - wanted[name].double()).norm() for name in wanted]).norm()
    return float(off / torch.stack([tensor.double().norm() for tensor in wanted.values()]).norm())


def test_it_is_chosen(gpu: torch.device) -> None:
    assert choose_backend(gpu) == "flash"


@DTYPES
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("asked", [{}, {"sliding_window": 4}, {"softcap": 1.5}, {"sliding_window": 3, "softcap": 2.0}])
def test_one_layer(gpu: torch.device, dtype: torch.dtype, seed: int, asked: dict[str, Any]) -> None:
    """Its error against float64 is no larger than that of the other backend, give or take rounding."""
    wanted = one_layer(torch.device("cpu"), torch.float64, "dense", seed, asked)
    usual, found = (one_layer(gpu, dtype, backend, seed, asked) for backend in ("segments", "flash"))
    for name in wanted:
        errors = [distance({name: run[name].cpu()}, {name: wanted[name]}) for run in (found, usual)]
        assert errors[0] < 2 * errors[1] + torch.finfo(dtype).eps, name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_rectangles(any_gpu: torch.device, dtype: torch.dtype, seed: int) -> None:
    """torch's flash and memory-efficient kernels, block by block."""
    wanted = one_layer(torch.device("cpu"), torch.float64, "dense", seed, {})
    usual, found = (one_layer(any_gpu, dtype, backend, seed, {}) for backend in ("segments", "rectangles"))
    for name in wanted:
        errors = [distance({name: run[name].cpu()}, {name: wanted[name]}) for run in (found, usual)]
        assert errors[0] < 2 * errors[1] + torch.finfo(dtype).eps, name


def test_rectangles_have_no_kernel_for_float64(any_gpu: torch.device) -> None:
    with pytest.raises(ConfigError, match="use 'segments'"):
        one_layer(any_gpu, torch.float64, "rectangles", 0, {})


def one_layer(
    device: torch.device, dtype: torch.dtype, backend: Backend, seed: int, asked: dict[str, Any]
) -> dict[str, torch.Tensor]:
    """Output and gradients of one layer; the inputs are numbers of bfloat16, so that every format holds them."""
    pack = forked_pack(seed)
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).bfloat16().to(device, dtype)

    inputs = [draw(1, heads, pack.num_tokens, 32).requires_grad_() for heads in (4, 2, 2)]
    layout = PackLayout.of(pack, backend, device)
    output, _ = attend(torch.nn.Identity(), *inputs, None, scaling=0.3, pack_layout=layout, **asked)
    grads = torch.autograd.grad(output, inputs, draw(*output.shape))
    return dict(zip(("output", "query", "key", "value"), (output.detach(), *grads), strict=True))


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
    call_M = forest.occurrences.call
    temperature_M = batch.temperatures[call_M]
    packs = [pack for pack in forest.packs(48) if pack.occ_index.size]
    assert len(packs) > 1
    return [PackTensors.of(p, temperature_M[p.occ_index], call_M[p.occ_index], backend, 16, device) for p in packs]
