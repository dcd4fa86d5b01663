"""One block of attention with its log-sum-exp, and its backward pass against the log-sum-exp of all blocks.

torch's fused kernels, called below autograd. They align causal blocks at the top left, so those have as many keys as
queries.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from ajet_core.errors import ConfigError

_aten = torch.ops.aten


class Inputs(NamedTuple):
    """One block: H heads of Q queries, G heads of K keys that each serve H / G of them."""

    query_HQD: Tensor
    key_GKD: Tensor
    value_GKD: Tensor
    causal: bool
    scaling: float

    def heads(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries, keys and values as a batch of one."""
        return self.query_HQD[None], self.key_GKD[None], self.value_GKD[None]

    def repeated(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the same with H heads of keys and values."""
        times = self.query_HQD.shape[0] // self.key_GKD.shape[0]
        query, key, value = self.heads()
        return query, key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)


class Rows(NamedTuple):
    """What the block's rows have over all blocks: gradient [H, Q, D], result [H, Q, D], log-sum-exp [H, Q]."""

    grad_HQD: Tensor
    out_HQD: Tensor
    lse_HQ: Tensor


Grads = tuple[Tensor, Tensor, Tensor]
"""Gradients of a block's queries [H, Q, D], keys [G, K, D] and values [G, K, D]."""


class Kernel(Protocol):
    """Fused attention over one block."""

    def forward(self, block: Inputs) -> tuple[Tensor, Tensor]:
        """Returns (out [H, Q, D], lse [H, Q]): `lse = log sum_k exp(scaling * q . k)`, natural, float32 at least."""
        ...

    def backward(self, block: Inputs, rows: Rows) -> Grads:
        """Returns this block's part of the gradient.

        With `out` and `lse` of the rows' whole softmax, `exp(score - lse)` are the weights of the whole softmax, and
        the parts of all blocks add up to the gradient (Dao et al. 2022, arXiv 2205.14135, algorithm 4).
        """
        ...


class CpuFlash:
    """torch's flash attention for CPUs: any number format; shared key heads without copies."""

    def forward(self, block: Inputs) -> tuple[Tensor, Tensor]:
        run = _aten._scaled_dot_product_flash_attention_for_cpu.default
        out, lse = run(*block.heads(), 0.0, block.causal, scale=block.scaling)
        return out[0], lse[0]

    def backward(self, block: Inputs, rows: Rows) -> Grads:
        run = _aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        grad, out, lse = (x[None] for x in rows)
        query, key, value = run(grad, *block.heads(), out, lse, 0.0, block.causal, scale=block.scaling)
        return query[0], key[0], value[0]


class CudaFlash:
    """torch's own flash attention for GPUs: half formats; shared key heads without copies."""

    def forward(self, block: Inputs) -> tuple[Tensor, Tensor]:
        run = _aten._scaled_dot_product_flash_attention.default
        out, lse, *_ = run(*block.heads(), 0.0, block.causal, False, scale=block.scaling)
        return out[0], lse[0]

    def backward(self, block: Inputs, rows: Rows) -> Grads:
        run = _aten._scaled_dot_product_flash_attention_backward.default
        grad, out, lse = (x[None].contiguous() for x in rows)
        lengths = (None, None, block.query_HQD.shape[1], block.key_GKD.shape[1])  # None: all sequences are as long
        seed = torch.zeros(2, dtype=torch.uint64, device=grad.device)  # of the dropout that there is not
        dropout = (0.0, block.causal, seed, seed[:0])
        query, key, value = run(grad, *block.heads(), out, lse, *lengths, *dropout, scale=block.scaling)
        return query[0], key[0], value[0]


class CudaEfficient:
    """torch's memory-efficient attention for GPUs: float32. Key heads are repeated and their gradients added up."""

    _LSE_ROWS = 32
    """The kernel wants the log-sum-exp of a multiple of so many rows."""

    def forward(self, block: Inputs) -> tuple[Tensor, Tensor]:
        run = _aten._scaled_dot_product_efficient_attention.default
        out, lse, *_ = run(*block.repeated(), None, True, 0.0, block.causal, scale=block.scaling)
        return out[0], lse[0, :, : block.query_HQD.shape[1]]

    def backward(self, block: Inputs, rows: Rows) -> Grads:
        run = _aten._scaled_dot_product_efficient_attention_backward.default
        lse = pad(rows.lse_HQ, (0, -rows.lse_HQ.shape[1] % self._LSE_ROWS), value=torch.inf)[None]
        seed = torch.zeros((), dtype=torch.int64, device=lse.device)  # of the dropout that there is not
        inputs = (rows.grad_HQD[None], *block.repeated(), None, rows.out_HQD[None], lse, seed, seed, 0.0)
        query, key, value, _ = run(*inputs, [True, True, True, False], block.causal, scale=block.scaling)
        shared = (block.key_GKD.shape[0], -1)
        return query[0], key[0].unflatten(0, shared).sum(1), value[0].unflatten(0, shared).sum(1)


def kernel_for(device: torch.device, dtype: torch.dtype) -> Kernel:
    """Returns the kernel for a number format on a device.

    Raises:
        ConfigError: there is none.
    """
    if device.type == "cpu":
        return CpuFlash()
    if device.type == "cuda" and dtype in (torch.bfloat16, torch.float16):
        return CudaFlash()
    if device.type == "cuda" and dtype == torch.float32:
        return CudaEfficient()
    raise ConfigError(
        f"trainer.attention: 'rectangles' has no kernel for {dtype} on {device.type}; use 'segments'",
        field="trainer.attention",
    )
