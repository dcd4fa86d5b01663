import logging
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention
from trainer_reference import forked_pack

from ajet_core.errors import ConfigError
from ajet_merge import Call, Pack, merge
from ajet_server.train.attention import Backend, PackLayout, attend, choose_backend, segments
from ajet_server.train.attention.layout import Block
from ajet_server.train.attention.scores import softcapped

CPU, GPU = torch.device("cpu"), torch.device("cuda")
BACKENDS: list[Backend] = ["segments", "rectangles", "dense", "flash"]


def fake_flash(query: Any, key: Any, value: Any, **options: Any) -> torch.Tensor:
    """flash_attn_varlen_func as its documentation has it: causal masks and windows aligned at the bottom right."""
    assert options["causal"]
    parts: list[torch.Tensor] = []
    cu_q, cu_k = options["cu_seqlens_q"].tolist(), options["cu_seqlens_k"].tolist()
    for index in range(len(cu_q) - 1):
        q = query[cu_q[index] : cu_q[index + 1]].transpose(0, 1)
        k, v = (x[cu_k[index] : cu_k[index + 1]].transpose(0, 1) for x in (key, value))
        assert q.shape[1] <= options["max_seqlen_q"]
        assert k.shape[1] <= options["max_seqlen_k"]
        i, j = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1], torch.arange(k.shape[1])[None]
        left, right = options["window_size"]
        assert (left, right) == (-1, -1) or right == 0
        mask = (j <= i) & ((j >= i - left) if left >= 0 else True)
        scale, cap = options["softmax_scale"], options["softcap"]
        if cap:
            parts.append(softcapped(q, k, v, scale, cap, mask))
        else:
            parts.append(scaled_dot_product_attention(q[None], k[None], v[None], mask, scale=scale, enable_gqa=True)[0])
    return torch.cat(parts, 1).transpose(0, 1)


@pytest.fixture(autouse=True)
def flash_attn(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    module = SimpleNamespace(__version__="2.8.3", flash_attn_varlen_func=fake_flash)
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield module
    torch.set_num_threads(threads)


_ids = st.lists(st.integers(0, 2), min_size=1, max_size=9)  # few different ids, so that much is shared


@st.composite
def packs(draw: st.DrawFn) -> Pack:
    calls = [Call(draw(_ids), tail := draw(_ids), np.zeros(len(tail))) for _ in range(draw(st.integers(1, 8)))]
    return draw(st.sampled_from(merge(calls).packs(draw(st.sampled_from([20, 4096])))))


def by_parents(pack: Pack, inputs: list[torch.Tensor], window: int | None, softcap: float | None) -> torch.Tensor:
    """Attention token by token, each along its own path. [1, T, H, D]."""
    query, key, value = (x[0] for x in inputs)
    times = query.shape[0] // key.shape[0]
    key, value = key.repeat_interleave(times, 0), value.repeat_interleave(times, 0)
    rows: list[torch.Tensor] = []
    for token in range(pack.num_tokens):
        seen, at = [token], int(pack.parent[token])
        while at >= 0:
            seen.append(at)
            at = int(pack.parent[at])
        seen = seen[:window]
        scores = 0.3 * torch.einsum("hd,hkd->hk", query[:, token], key[:, seen])
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        rows.append(torch.einsum("hk,hkd->hd", scores.softmax(-1), value[:, seen]))
    return torch.stack(rows)[None]


def inputs_for(pack: Pack, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, heads, pack.num_tokens, 8) for heads in (4, 2, 2)]
    return [torch.randn(shape, dtype=dtype, generator=generator).requires_grad_() for shape in shapes]


def gradients(output: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    upstream = torch.sin(torch.arange(output.numel(), dtype=torch.float64)).view(output.shape)
    return [output, *torch.autograd.grad(output, inputs, upstream.to(output.dtype))]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(packs(), st.none() | st.integers(1, 12), st.sampled_from([None, 1.5]), st.sampled_from([2, 512]))
@pytest.mark.parametrize("backend", BACKENDS)
def test_each_token_attends_along_its_own_path(
    monkeypatch: pytest.MonkeyPatch, backend: Backend, pack: Pack, window: int | None, softcap: float | None, rows: int
) -> None:
    monkeypatch.setattr(segments, "_ROWS", rows)
    inputs, layout = inputs_for(pack), PackLayout.of(pack, backend, CPU)
    asked: dict[str, Any] = {"scaling": 0.3, "sliding_window": window, "softcap": softcap}
    found, nothing = attend(torch.nn.Identity(), *inputs, None, pack_layout=layout, **asked)
    assert nothing is None
    wanted = by_parents(pack, inputs, window, softcap)
    for ours, theirs in zip(gradients(found, inputs), gradients(wanted, inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(packs())
def test_blocks_are_the_mask_and_few(pack: Pack) -> None:
    layout = PackLayout.of(pack, "rectangles", CPU)
    size = pack.num_tokens
    count = np.zeros((size, size), int)
    for q_start, q_end, k_start, k_end, causal in layout.blocks:
        area = np.ones((q_end - q_start, k_end - k_start), int)
        count[q_start:q_end, k_start:k_end] += np.tril(area) if causal else area
    index = np.arange(size)
    mask = (index[None] <= index[:, None]) & (index[:, None] < pack.subtree_end[None])
    assert np.array_equal(count, mask)
    forks = set(pack.seg_attach[pack.seg_attach >= 0].tolist())
    assert len(layout.blocks) == pack.num_segments + len(forks)


def test_eight_rollouts_of_a_prompt_are_one_rectangle() -> None:
    calls = [Call([9] * 5, [rollout] * 3, np.zeros(3)) for rollout in range(8)]
    (pack,) = merge(calls).packs(4096)
    rectangles = [block for block in PackLayout.of(pack, "rectangles", CPU).blocks if not block.causal]
    assert rectangles == [Block(8, 29, 0, 5, False)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", ["segments", "rectangles", "dense"])
def test_other_number_formats(backend: Backend, dtype: torch.dtype) -> None:
    pack = forked_pack()
    exact = [x.detach().to(dtype).double().requires_grad_() for x in inputs_for(pack)]
    rounded = [x.detach().to(dtype).requires_grad_() for x in exact]
    layout = PackLayout.of(pack, backend, CPU)
    found, _ = attend(torch.nn.Identity(), *rounded, None, scaling=0.3, pack_layout=layout)
    assert found.dtype == dtype
    wanted = gradients(by_parents(pack, exact, None, None), exact)
    for ours, theirs in zip(gradients(found, rounded), wanted, strict=True):
        assert (ours.double() - theirs).norm() < 4 * torch.finfo(dtype).eps * theirs.norm()


@pytest.mark.parametrize("backend", ["segments", "rectangles"])
@pytest.mark.parametrize("asked", [{}, {"sliding_window": 40}, {"softcap": 2.0}], ids=str)
def test_no_matrix_of_tokens_by_tokens(backend: Backend, asked: dict[str, Any]) -> None:
    """What one layer keeps for its backward pass is smaller, masks included."""
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, 9, 1400)
    calls = [Call(prompt, rng.integers(9, 99, 600), np.zeros(600)) for _ in range(2)]
    (pack,) = merge(calls).packs(4096)
    kept: dict[int, int] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    inputs = [torch.randn(1, 1, pack.num_tokens, 4, requires_grad=True) for _ in range(3)]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        output = attend(torch.nn.Identity(), *inputs, None, pack_layout=PackLayout.of(pack, backend, CPU), **asked)
    assert kept
    assert sum(kept.values()) < pack.num_tokens**2  # bytes; the scores alone would be four times as many
    del output


def test_the_choice(flash_attn: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    assert choose_backend(GPU) == "flash"
    assert "flash on cuda: a GPU and flash-attn are there" in caplog.text
    assert choose_backend(CPU) == "rectangles"
    assert "rectangles on cpu: it needs neither masks nor copies of keys" in caplog.text
    flash_attn.__version__ = "2.6.3"
    assert choose_backend(GPU) == "segments"
    assert "flash-attn 2.6.3 is older than 2.7" in caplog.text
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    assert choose_backend(GPU) == "segments"
    assert "flash-attn is not installed" in caplog.text


@pytest.mark.parametrize("backend", ["segments", "rectangles", "dense"])
def test_each_can_be_forced(backend: Backend, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    for device in (CPU, GPU):
        assert choose_backend(device, backend) == backend
        assert f"{backend} on {device.type}: trainer.attention asks for it" in caplog.text


def test_flash_cannot_be_forced_where_it_cannot_run(flash_attn: SimpleNamespace) -> None:
    assert choose_backend(GPU, "flash") == "flash"
    with pytest.raises(ConfigError, match="has no kernel for cpu") as caught:
        choose_backend(CPU, "flash")
    assert caught.value.field == "trainer.attention"
    flash_attn.__version__ = "2.0.9"
    with pytest.raises(ConfigError, match="top left"):
        choose_backend(GPU, "flash")


def test_the_dense_mask_is_for_small_packs() -> None:
    ids = np.zeros(4097, np.int32)
    (pack,) = merge([Call(ids[:1], ids[1:], np.zeros(4096))]).packs(8192)
    with pytest.raises(ConfigError, match="at most 4096, but one has 4097") as caught:
        PackLayout.of(pack, "dense", CPU)
    assert caught.value.field == "trainer.attention"
    PackLayout.of(pack, "rectangles", CPU)


@pytest.mark.parametrize(
    "asked", [{"s_aux": torch.zeros(1)}, {"dropout": 0.1}, {"pack_layout": None}, {"position_bias": torch.zeros(1)}]
)
def test_what_it_cannot_do_is_refused(asked: dict[str, Any]) -> None:
    query = torch.zeros(1, 1, 2, 4)
    fields: dict[str, Any] = {"pack_layout": PackLayout.of(forked_pack(), "segments", CPU)} | asked
    with pytest.raises(ConfigError, match="cannot do"):
        attend(torch.nn.Identity(), query, query, query, None, **fields)


def test_attention_that_is_not_causal_is_refused() -> None:
    query, layer = torch.zeros(1, 1, 40, 4), torch.nn.Identity()
    layer.is_causal = False
    with pytest.raises(ConfigError, match="is_causal=False"):
        attend(layer, query, query, query, None, pack_layout=PackLayout.of(forked_pack(), "segments", CPU))


def test_values_of_another_size_than_keys() -> None:
    pack = forked_pack()
    query, key, value = (torch.randn(1, 2, pack.num_tokens, size, dtype=torch.float64) for size in (8, 8, 4))
    found, _ = attend(
        torch.nn.Identity(), query, key, value, None, scaling=0.3, pack_layout=PackLayout.of(pack, "rectangles", CPU)
    )
    torch.testing.assert_close(found, by_parents(pack, [query, key, value], None, None), rtol=0, atol=1e-12)
