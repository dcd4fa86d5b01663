"""Attention by causal blocks and rectangles over the pack as it lies, merged by log-sum-exp.

A row's softmax over several blocks is the mean of the blocks' results weighted by exp(lse): exact, in any order
(Milakov and Gimelshein 2018, arXiv 1805.02867). No key is copied and no mask is made.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ajet_server.train.attention.kernels import Inputs, Kernel, Rows, kernel_for
from ajet_server.train.attention.layout import Block, PackLayout
from ajet_server.train.attention.scores import Scores


def by_rectangles(query_HTD: Tensor, key_GTD: Tensor, value_GTD: Tensor, scores: Scores, layout: PackLayout) -> Tensor:
    """One call of a fused kernel for each block. Returns [T, H, D]. Neither window nor softcap."""
    apply: Callable[..., Tensor] = _Rectangles.apply  # pyright: ignore[reportUnknownMemberType, reportAssignmentType]
    return apply(query_HTD, key_GTD, value_GTD, scores.scaling, layout.blocks).transpose(0, 1)


class _Rectangles(torch.autograd.Function):
    """[H, T, D], [G, T, D], [G, T, D] -> [H, T, D].

    Backward never goes through the merge. That would need gradients of each block's `lse`, which the kernels do not
    give; instead each block's backward pass gets the merged result and the merged `lse`.
    """

    @staticmethod
    def forward(
        ctx: Any, query_HTD: Tensor, key_GTD: Tensor, value_GTD: Tensor, scaling: float, blocks: list[Block]
    ) -> Tensor:
        kernel = kernel_for(query_HTD.device, query_HTD.dtype)
        out_HTD, lse_HT = _merged(kernel, query_HTD, key_GTD, value_GTD, scaling, blocks)
        out_HTD = out_HTD.to(query_HTD.dtype)
        ctx.save_for_backward(query_HTD, key_GTD, value_GTD, out_HTD, lse_HT)
        ctx.kernel, ctx.scaling, ctx.blocks = kernel, scaling, blocks
        return out_HTD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query_HTD, key_GTD, value_GTD, out_HTD, lse_HT = ctx.saved_tensors
        kernel: Kernel = ctx.kernel
        wide = torch.promote_types(query_HTD.dtype, torch.float32)  # sums of many blocks
        sums = [torch.zeros_like(x, dtype=wide) for x in (query_HTD, key_GTD, value_GTD)]
        for block in ctx.blocks:
            rows, keys = slice(block.q_start, block.q_end), slice(block.k_start, block.k_end)
            inputs = Inputs(query_HTD[:, rows], key_GTD[:, keys], value_GTD[:, keys], block.causal, ctx.scaling)
            parts = kernel.backward(inputs, Rows(grads[0][:, rows], out_HTD[:, rows], lse_HT[:, rows]))
            for total, where, part in zip(sums, (rows, keys, keys), parts, strict=True):
                total[:, where] += part
        return *(total.to(query_HTD.dtype) for total in sums), None, None


def _merged(
    kernel: Kernel, query_HTD: Tensor, key_GTD: Tensor, value_GTD: Tensor, scaling: float, blocks: list[Block]
) -> tuple[Tensor, Tensor]:
    """Returns (out [H, T, D], lse [H, T]) of all blocks, float32 at least. Causal ones come first and tile the rows."""
    wide = torch.promote_types(query_HTD.dtype, torch.float32)
    out_HTD = query_HTD.new_empty(*query_HTD.shape[:2], value_GTD.shape[2], dtype=wide)
    lse_HT = query_HTD.new_empty(query_HTD.shape[:2], dtype=wide)
    for block in blocks:
        rows, keys = slice(block.q_start, block.q_end), slice(block.k_start, block.k_end)
        inputs = Inputs(query_HTD[:, rows], key_GTD[:, keys], value_GTD[:, keys], block.causal, scaling)
        out_HQD, lse_HQ = kernel.forward(inputs)
        if block.causal:
            out_HTD[:, rows], lse_HT[:, rows] = out_HQD, lse_HQ
        else:
            share_HQ = torch.sigmoid(lse_HQ - lse_HT[:, rows])  # exp(new) / (exp(old) + exp(new))
            out_HTD[:, rows].lerp_(out_HQD.to(wide), share_HQ[..., None])
            lse_HT[:, rows] = torch.logaddexp(lse_HT[:, rows], lse_HQ)
    return out_HTD, lse_HT
