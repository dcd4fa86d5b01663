"""Contract 7 for each family of models and each backend that a CPU has: merged equals each call alone."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from family_reference import (
    FAMILIES,
    WINDOW,
    alone,
    batch,
    make,
    merged,
    occurrences,
    one_thread,
    plain,
    precisely,
    relative_error,
)

from ajet_merge import merge
from ajet_server.train.attention import ATTENTION, Backend

BACKENDS: list[Backend] = ["segments", "rectangles", "dense"]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    with one_thread():
        yield


@cache
def _wanted(family: str, dtype: torch.dtype, lora: bool, checkpointing: bool) -> tuple[Any, dict[str, torch.Tensor]]:
    model = make(family, dtype, lora, checkpointing)
    return model, alone(model, batch())


def _check(family: str, dtype: torch.dtype, backend: Backend, lora: bool, checkpointing: bool) -> None:
    model, wanted = _wanted(family, dtype, lora, checkpointing)
    assert len(wanted) > 10
    for budget in (40, 4096):
        packs = merge(batch()).packs(budget)
        assert (len(packs) == 1) == (budget == 4096)
        assert relative_error(merged(model, packs, backend), wanted) < TOLERANCE[dtype]


@DTYPES
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_all_weights(family: str, backend: Backend, dtype: torch.dtype) -> None:
    _check(family, dtype, backend, lora=False, checkpointing=False)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", ["llama", "mistral-window", "gemma2"])
@pytest.mark.parametrize(("lora", "checkpointing"), [(True, False), (True, True), (False, True)])
def test_adapters_and_activation_checkpointing(family: str, backend: Backend, lora: bool, checkpointing: bool) -> None:
    _check(family, torch.float64, backend, lora, checkpointing)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gemma3"])
def test_the_ratio_is_exactly_one_where_old_and_new_are_computed_in_the_same_layout(
    family: str, backend: Backend
) -> None:
    model = make(family, torch.float32)
    plain(model).set_attn_implementation(ATTENTION)
    (pack,) = merge(batch()).packs(4096)
    with torch.no_grad():
        old = occurrences(model, pack, backend)
    assert torch.equal((occurrences(model, pack, backend) - old).exp(), torch.ones_like(old))


def test_windows_are_within_sight() -> None:
    """Else the families with a window would test nothing: a model without one gives other numbers."""
    (pack,) = merge(batch()).packs(4096)
    assert pack.pos.max() > 2 * WINDOW
    model = make("mistral-window", torch.float64)
    plain(model).set_attn_implementation(ATTENTION)
    with precisely(torch.float64), torch.no_grad():
        near = occurrences(model, pack, "dense")
        plain(model).config.sliding_window = None
        assert (occurrences(model, pack, "dense") - near).abs().max() > 1e-3
