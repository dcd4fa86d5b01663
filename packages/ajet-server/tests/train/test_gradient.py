"""Contract 7: the gradient of a merged batch is that of training each call alone, by each backend that a CPU has."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from trainer_reference import (
    VOCAB,
    Rows,
    gradients,
    micro_job,
    mixed_batch,
    quiet,
    reference_backward,
    reference_model,
    relative_error,
    to_double,
)

from ajet_core.config import AlgorithmConfig, LoraConfig
from ajet_merge import Call, merge
from ajet_server.samples.merge import build_batch
from ajet_server.train.attention import Backend
from ajet_server.train.forward import PackTensors
from ajet_server.train.lora import add_adapter
from ajet_server.train.reference import with_old
from ajet_server.train.step import accumulate
from ajet_server.train.trainer import Trainer
from ajet_server.worker.protocol import EpisodeRow

TOLERANCE = {False: 1e-5, True: 1e-12}
DOUBLE = pytest.mark.parametrize("double", [False, True], ids=["fp32", "fp64"])
BACKENDS = pytest.mark.parametrize("backend", ["rectangles", "segments"])
CPU = torch.device("cpu")


@cache
def _pair(folder: Path, method: str, double: bool) -> tuple[Trainer, nn.Module]:
    """A trainer and the plain reference with equal weights; B of the adapter is random so that A has a gradient."""
    trainer = Trainer.load(micro_job(folder, method))
    reference = reference_model(folder)
    if method == "lora":
        reference = add_adapter(reference, LoraConfig(), seed=0)
    torch.manual_seed(1)
    ours = dict(trainer.model.named_parameters())
    for name, parameter in reference.named_parameters():
        if "lora_B" in name:
            with torch.no_grad():
                parameter.copy_(ours[name].normal_(std=0.02))
        assert torch.equal(parameter, ours[name])
    if double:
        to_double(trainer.plain)
        to_double(reference.get_base_model() if method == "lora" else reference)
    return trainer, reference


def _compare(
    pair: tuple[Trainer, nn.Module],
    calls: Sequence[Call],
    temperatures: np.ndarray[Any, Any],
    algorithm: AlgorithmConfig,
    budget: int,
    tolerance: float,
    backend: Backend,
) -> int:
    trainer, reference = pair
    for model in pair:
        (model.model if isinstance(model, Trainer) else model).zero_grad(set_to_none=True)
    wanted = reference_backward(reference, calls, temperatures.tolist(), algorithm)
    packs = _packs(calls, temperatures, budget, backend)
    stats = accumulate(trainer.plain, packs, algorithm, quiet)
    assert relative_error(gradients(trainer.model), gradients(reference)) < tolerance
    slack = max(tolerance, 1e-10)
    found = {
        "loss": float(stats.loss),
        "clip_fraction": float(stats.clipped_low + stats.clipped_high) / int(stats.count),
        "approx_kl": float(stats.k3) / int(stats.exact),
        "ratio_min": float(stats.ratio.lowest),
        "ratio_max": float(stats.ratio.highest),
        "entropy": float(stats.entropy) / int(stats.count),
    }
    assert found == pytest.approx(wanted, rel=10 * slack, abs=slack)
    return len(packs)


def _packs(
    calls: Sequence[Call], temperatures: np.ndarray[Any, Any], budget: int, backend: Backend
) -> list[PackTensors]:
    forest = merge(calls)
    calls_M = forest.occurrences.call
    packs = [(pack, calls_M[pack.occ_index]) for pack in forest.packs(budget) if pack.occ_index.size]
    return [PackTensors.of(pack, temperatures[call_M], call_M, backend, 3, CPU) for pack, call_M in packs]


@BACKENDS
@DOUBLE
@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("loss_weight", ["episode_mean", "token_mean"])
@pytest.mark.parametrize("budget", [34, 4096], ids=["many packs", "one pack"])
def test_mixed_batch(
    model_folder: Path, method: str, double: bool, loss_weight: Any, budget: int, backend: Backend
) -> None:
    algorithm = AlgorithmConfig(loss_weight=loss_weight)
    batch = build_batch(mixed_batch(), algorithm, VOCAB)
    pair = _pair(model_folder, method, double)
    packs = _compare(pair, batch.calls, batch.temperatures, algorithm, budget, TOLERANCE[double], backend)
    assert (packs > 4) == (budget == 34)


def _named_cases() -> dict[str, list[EpisodeRow]]:
    cases: dict[str, Rows] = {}

    def case(name: str) -> tuple[Rows, np.ndarray[Any, Any]]:
        rows = cases[name] = Rows(seed=len(name))
        return rows, rows.ids(9)

    rows, prompt = case("identical completions")
    twin = rows.ids(5)
    for reward in (0.0, 1.0, 1.0):
        rows.episode("g", reward, (prompt, twin, 1.0))
    rows, prompt = case("one completion is the beginning of another")
    twin = rows.ids(6)
    rows.episode("g", 0.0, (prompt, twin, 1.0))
    rows.episode("g", 1.0, (prompt, twin[:2], 1.0))
    rows, prompt = case("every branch starts at the same predictor")
    for reward in range(5):
        rows.episode("g", reward, (prompt, rows.ids(1), 1.0))
    rows, prompt = case("a tree of forks")
    branches = [rows.ids(3), rows.ids(3)]
    for reward, branch in enumerate([*branches, *branches]):
        middle = np.concatenate([prompt, branch])
        rows.episode("g", reward, (middle, rows.ids(4), 1.0), (middle, rows.ids(2), 1.0))
    rows, prompt = case("no call shares anything")
    for reward in range(3):
        rows.episode("g", reward, (rows.ids(6), rows.ids(4), 1.0))
    rows, prompt = case("a completion is context of three later turns")
    ids = prompt
    turns: list[Any] = []
    for _ in range(4):
        completion = rows.ids(4)
        turns.append((ids, completion, 1.0))
        ids = np.concatenate([ids, completion, rows.ids(3)])
    rows.episode("g", 0.0, *turns)
    rows.episode("g", 1.0, turns[0])
    rows, prompt = case("one predictor at three temperatures")
    twin = rows.ids(4)
    for reward, temperature in enumerate((0.5, 1.0, 2.0)):
        rows.episode("g", reward, (prompt, twin, temperature))
    rows, prompt = case("a call without a completion")
    rows.episode("g", 0.0, (prompt, [], 1.0), (prompt, rows.ids(3), 1.0))
    rows.episode("g", 1.0, (prompt, rows.ids(3), 1.0))
    return {name: rows.episodes for name, rows in cases.items()}


@BACKENDS
@pytest.mark.parametrize(
    ("name", "episodes"), _named_cases().items(), ids=lambda value: str(value) * isinstance(value, str)
)
def test_named_case(model_folder: Path, name: str, episodes: list[EpisodeRow], backend: Backend) -> None:
    algorithm = AlgorithmConfig()
    batch = build_batch(episodes, algorithm, VOCAB)
    _compare(_pair(model_folder, "lora", True), batch.calls, batch.temperatures, algorithm, 4096, 1e-12, backend)


_ids = st.lists(st.integers(0, 2), min_size=1, max_size=6)  # few different ids, so that much is shared


@st.composite
def _batches(draw: st.DrawFn) -> tuple[list[Call], np.ndarray[Any, Any], int]:
    count = draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    calls = [
        Call(
            draw(_ids),
            completion := draw(_ids),
            rng.normal(-6.2, 0.4, len(completion)),
            mask=draw(st.lists(st.integers(0, 1), min_size=len(completion), max_size=len(completion))),
            advantage=rng.normal(size=len(completion)),
            weight=rng.uniform(0, 1, len(completion)),
        )
        for _ in range(count)
    ]
    temperatures = np.array(draw(st.lists(st.sampled_from([1.0, 0.6]), min_size=count, max_size=count)), np.float32)
    return calls, temperatures, draw(st.sampled_from([12, 16, 4096]))


@BACKENDS
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(batch=_batches())
def test_generated_batch(
    model_folder: Path, backend: Backend, batch: tuple[list[Call], np.ndarray[Any, Any], int]
) -> None:
    calls, temperatures, budget = batch
    if not any(call.trained.any() for call in calls):
        return
    trainer, reference = _pair(model_folder, "full", True)
    trainer.model.zero_grad(set_to_none=True)
    reference.zero_grad(set_to_none=True)
    algorithm = AlgorithmConfig()
    kept = [(call, float(t)) for call, t in zip(calls, temperatures, strict=True) if call.trained.any()]
    _masked_reference(reference, kept, algorithm)
    accumulate(trainer.plain, _packs(calls, temperatures, budget, backend), algorithm, quiet)
    assert relative_error(gradients(trainer.model), gradients(reference)) < 1e-12


def _masked_reference(model: nn.Module, calls: list[tuple[Call, float]], algorithm: AlgorithmConfig) -> None:
    """A masked token is one of weight 0."""
    plain = [
        Call(c.prompt_ids, c.completion_ids, c.logprobs, advantage=c.advantage, weight=c.weight * c.mask)
        for c, _ in calls
    ]
    reference_backward(model, plain, [temperature for _, temperature in calls], algorithm)


@BACKENDS
@DOUBLE
@pytest.mark.parametrize("budget", [34, 4096], ids=["many packs", "one pack"])
def test_the_ratio_is_exactly_one_when_old_and_new_are_computed_in_the_same_layout(
    model_folder: Path, double: bool, budget: int, backend: Backend
) -> None:
    algorithm = AlgorithmConfig(old_logprobs="recomputed")
    trainer, _ = _pair(model_folder, "full", double)
    trainer.model.zero_grad(set_to_none=True)
    batch = build_batch(mixed_batch(), algorithm, VOCAB)
    packs = with_old(trainer.plain, _packs(batch.calls, batch.temperatures, budget, backend))
    stats = accumulate(trainer.plain, packs, algorithm, quiet)
    assert float(stats.ratio.lowest) == float(stats.ratio.highest) == 1
    assert int(stats.clipped_low + stats.clipped_high) == 0
    moved = [replace(pack, old_M=pack.old_M - 1e-6) for pack in packs if pack.old_M is not None]
    assert float(accumulate(trainer.plain, moved, algorithm, quiet).ratio.highest) > 1
