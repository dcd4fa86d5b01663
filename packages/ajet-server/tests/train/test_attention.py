import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from trainer_reference import dense, forked_pack

from ajet_core.errors import ConfigError
from ajet_server.train.attention import Backend, PackLayout, attend, choose_backend

CPU = torch.device("cpu")


def fake_flash(query: Any, key: Any, value: Any, **options: Any) -> torch.Tensor:
    """flash_attn_varlen_func as its documentation has it: causal masks aligned at the bottom right."""
    assert options["causal"]
    parts: list[torch.Tensor] = []
    cu_q, cu_k = options["cu_seqlens_q"].tolist(), options["cu_seqlens_k"].tolist()
    for index in range(len(cu_q) - 1):
        q = query[cu_q[index] : cu_q[index + 1]].transpose(0, 1)
        k, v = (x[cu_k[index] : cu_k[index + 1]].transpose(0, 1) for x in (key, value))
        assert q.shape[1] <= options["max_seqlen_q"]
        assert k.shape[1] <= options["max_seqlen_k"]
        mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
        scale = options["softmax_scale"]
        parts.append(scaled_dot_product_attention(q[None], k[None], v[None], mask, scale=scale, enable_gqa=True)[0])
    return torch.cat(parts, 1).transpose(0, 1)


@pytest.fixture
def flash_attn(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    module = SimpleNamespace(__version__="2.8.3", flash_attn_varlen_func=fake_flash)
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    return module


@pytest.mark.parametrize("backend", ["segments", "flash"])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_dense_mask_forward_and_backward(flash_attn: object, backend: Backend, seed: int) -> None:
    pack = forked_pack(seed)
    layout = PackLayout.of(pack, backend, CPU)
    torch.manual_seed(0)
    inputs = [torch.randn(1, heads, pack.num_tokens, 8, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)]
    found, nothing = attend(torch.nn.Identity(), *inputs, None, scaling=0.3, pack_layout=layout)
    assert nothing is None
    wanted = dense(pack, *inputs)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    upstream = torch.randn_like(wanted)
    gradients = (torch.autograd.grad(output, inputs, upstream) for output in (found, wanted))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("version", ["2.0.9", "1.0.9"])
def test_an_old_flash_attn_is_not_used(flash_attn: SimpleNamespace, version: str) -> None:
    assert choose_backend(torch.device("cuda")) == "flash"
    assert choose_backend(CPU) == "segments"
    flash_attn.__version__ = version
    assert choose_backend(torch.device("cuda")) == "segments"
    query = torch.zeros(1, 1, 40, 4)
    with pytest.raises(ConfigError, match="top left"):
        attend(torch.nn.Identity(), query, query, query, None, pack_layout=PackLayout.of(forked_pack(), "flash", CPU))


@pytest.mark.parametrize(
    "asked",
    [{"sliding_window": 4}, {"softcap": 30.0}, {"s_aux": torch.zeros(1)}, {"dropout": 0.1}, {"pack_layout": None}],
)
def test_what_it_cannot_do_is_refused(asked: dict[str, Any]) -> None:
    query = torch.zeros(1, 1, 2, 4)
    fields: dict[str, Any] = {"pack_layout": PackLayout.of(forked_pack(), "segments", CPU)} | asked
    with pytest.raises(ConfigError, match="cannot do"):
        attend(torch.nn.Identity(), query, query, query, None, **fields)
