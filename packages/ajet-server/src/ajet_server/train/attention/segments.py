"""Attention segment by segment over gathered keys: torch's own, or flash-attn's in one call."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from ajet_server.train.attention.layout import PackLayout
from ajet_server.train.attention.scores import Scores, softcapped

_ROWS = 512
"""Rows of queries in one call where there is a mask: it is that high, and no key after its last row is computed."""


class _GatherRuns(torch.autograd.Function):
    """[H, T, D] -> [H, K, D]. Backward adds the branches' gradients run by run.

    `index_select` would do, but its backward on a CPU adds key by key; and on any device the fixed order of these
    additions makes the sum reproducible.
    """

    @staticmethod
    def forward(ctx: Any, x_HTD: torch.Tensor, layout: PackLayout) -> torch.Tensor:
        ctx.layout, ctx.shape = layout, x_HTD.shape
        return x_HTD.index_select(1, layout.gather_K)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        (grad_HKD,) = grads
        grad_HTD = grad_HKD.new_zeros(ctx.shape)
        done = 0
        for start, length in ctx.layout.runs:
            grad_HTD[:, start : start + length] += grad_HKD[:, done : done + length]
            done += length
        return grad_HTD, None


def _gathered(key_GTD: torch.Tensor, value_GTD: torch.Tensor, layout: PackLayout) -> tuple[torch.Tensor, torch.Tensor]:
    if layout.single_path:
        return key_GTD, value_GTD
    gather: Callable[..., torch.Tensor] = _GatherRuns.apply  # pyright: ignore[reportUnknownMemberType, reportAssignmentType]
    return gather(key_GTD, layout), gather(value_GTD, layout)


def by_segments(
    query_HTD: torch.Tensor, key_GTD: torch.Tensor, value_GTD: torch.Tensor, scores: Scores, layout: PackLayout
) -> torch.Tensor:
    """Calls torch's attention for each segment, or part of one. Returns [T, H, D]."""
    key_GKD, value_GKD = _gathered(key_GTD, value_GTD, layout)
    parts = zip(
        query_HTD.split(layout.q_lens, 1),
        key_GKD.split(layout.k_lens, 1),
        value_GKD.split(layout.k_lens, 1),
        strict=True,
    )
    return torch.cat([rows_QHD for q, k, v in parts for rows_QHD in _one_segment(q, k, v, scores, layout)])


class _Rows(NamedTuple):
    """Queries [q_start, q_end) of a segment and the keys [k_start, k_end) that any of them sees."""

    q_start: int
    q_end: int
    k_start: int
    k_end: int


def _rows(q_len: int, k_len: int, window: int | None) -> Iterator[_Rows]:
    before = k_len - q_len
    for start in range(0, q_len, _ROWS):
        end = min(start + _ROWS, q_len)
        first = 0 if window is None else max(0, before + start + 1 - window)
        yield _Rows(start, end, first, before + end)


def _one_segment(
    query_HQD: torch.Tensor, key_GKD: torch.Tensor, value_GKD: torch.Tensor, scores: Scores, layout: PackLayout
) -> Iterator[torch.Tensor]:
    """Yields [Q, H, D], in order.

    A segment's keys have consecutive positions that end with the segment's own. So a window in positions is a band that
    is aligned at the bottom right, like the causal mask.
    """
    q_len, k_len = query_HQD.shape[1], key_GKD.shape[1]
    if q_len == k_len and scores.window_within(k_len) is None and scores.softcap is None:
        # SDPA aligns is_causal at the top left, which is right only when there is no prefix.
        yield _sdpa(query_HQD, key_GKD, value_GKD, scores, None, True).transpose(0, 1)
        return
    for rows in _rows(q_len, k_len, scores.window_within(k_len)):
        parts = (
            query_HQD[:, rows.q_start : rows.q_end],
            key_GKD[:, rows.k_start : rows.k_end],
            value_GKD[:, rows.k_start : rows.k_end],
        )
        mask_QK = layout.mask(parts[0].shape[1], parts[1].shape[1], scores.window_within(k_len))
        if scores.softcap is None:
            yield _sdpa(*parts, scores, mask_QK, False).transpose(0, 1)
        else:  # scores are computed again in the backward pass: kept, they would be a T x T matrix after all
            yield checkpoint(
                softcapped, *parts, scores.scaling, scores.softcap, mask_QK, use_reentrant=False
            ).transpose(0, 1)


def _sdpa(
    query_HQD: torch.Tensor,
    key_GKD: torch.Tensor,
    value_GKD: torch.Tensor,
    scores: Scores,
    mask_QK: torch.Tensor | None,
    causal: bool,
) -> torch.Tensor:
    return scaled_dot_product_attention(
        query_HQD[None],
        key_GKD[None],
        value_GKD[None],
        attn_mask=mask_QK,
        is_causal=causal,
        scale=scores.scaling,
        enable_gqa=query_HQD.shape[0] != key_GKD.shape[0],
    )[0]


def by_flash(
    query_HTD: torch.Tensor, key_GTD: torch.Tensor, value_GTD: torch.Tensor, scores: Scores, layout: PackLayout
) -> torch.Tensor:
    """One call of flash-attn over all segments (Dao 2023, arXiv 2307.08691). Returns [T, H, D]."""
    attention = importlib.import_module("flash_attn").flash_attn_varlen_func
    key_GKD, value_GKD = _gathered(key_GTD, value_GTD, layout)
    window = scores.window_within(layout.longest)
    return attention(
        query_HTD.transpose(0, 1).contiguous(),
        key_GKD.transpose(0, 1).contiguous(),
        value_GKD.transpose(0, 1).contiguous(),
        cu_seqlens_q=layout.cu_q,
        cu_seqlens_k=layout.cu_k,
        max_seqlen_q=max(layout.q_lens),
        max_seqlen_k=layout.longest,
        softmax_scale=scores.scaling,
        causal=True,
        window_size=(-1, -1) if window is None else (window - 1, 0),
        softcap=scores.softcap or 0.0,
    )
