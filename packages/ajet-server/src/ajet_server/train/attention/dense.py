"""Attention by the whole mask of the forest: slow, and plainly right."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from ajet_server.train.attention.layout import PackLayout
from ajet_server.train.attention.scores import Scores, softcapped


def by_dense_mask(
    query_HTD: torch.Tensor, key_GTD: torch.Tensor, value_GTD: torch.Tensor, scores: Scores, layout: PackLayout
) -> torch.Tensor:
    """One call of attention with the mask that `Pack` defines. Returns [T, H, D]."""
    mask_TT = _mask(scores.window, layout)
    if scores.softcap is not None:
        return softcapped(query_HTD, key_GTD, value_GTD, scores.scaling, scores.softcap, mask_TT).transpose(0, 1)
    return scaled_dot_product_attention(
        query_HTD[None],
        key_GTD[None],
        value_GTD[None],
        attn_mask=mask_TT,
        scale=scores.scaling,
        enable_gqa=query_HTD.shape[0] != key_GTD.shape[0],
    )[0].transpose(0, 1)


def _mask(window: int | None, layout: PackLayout) -> torch.Tensor:
    """bool[T, T]: key k for query q when `k <= q < end[k]`, and near enough."""
    index_T = torch.arange(len(layout.pos_T), device=layout.pos_T.device)
    mask_TT = (index_T[None, :] <= index_T[:, None]) & (index_T[:, None] < layout.end_T[None, :])
    return mask_TT if window is None else mask_TT & (layout.pos_T[:, None] - layout.pos_T[None, :] < window)
