"""Exact attention over a pack: every token attends to its ancestors in the prefix forest and to itself.

A pack is one sequence of T tokens cut into S segments (heavy paths). Segment s's keys are the runs of its ancestors and
then itself, so causal attention aligned at the bottom right over the gathered keys is exactly the forest's mask.
transformers calls `attend` in every layer; the layout travels through the model as the keyword argument `pack_layout`.
"""

import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from ajet_core.errors import ConfigError

if TYPE_CHECKING:
    from ajet_merge import Pack

ATTENTION = "ajet_pack"
"""The name under which `attend` is registered with transformers."""

Backend = Literal["segments", "flash"]

_log = logging.getLogger(__name__)

_BOTTOM_RIGHT = (2, 1)
"""The flash-attn release from which causal masks are aligned at the bottom right."""

_MASK_CACHE = 1 << 26
"""Elements of masks (one byte each) that a layout keeps for its other layers; more are made anew in each layer."""

_MEANINGLESS_KWARGS = ("softcap", "s_aux", "position_bias")
"""What a layer may ask of its attention function that the forest's mask does not do."""


def choose_backend(device: torch.device) -> Backend:
    """Returns `flash` where a GPU and a flash-attn that aligns causal masks at the bottom right are there."""
    version = _flash_version() if device.type == "cuda" else None
    backend: Backend = "flash" if version is not None and version >= _BOTTOM_RIGHT else "segments"
    _log.info("pack attention: %s on %s (flash-attn %s)", backend, device.type, version or "not used")
    return backend


def _flash_version() -> tuple[int, int] | None:
    try:
        module = importlib.import_module("flash_attn")
    except ImportError:
        return None
    major, minor = str(module.__version__).split(".")[:2]
    return int(major), int(minor)


@dataclass(eq=False)
class PackLayout:
    """How one pack's T tokens attend, on the device. S segments, R runs of keys, K keys in all.

    Attributes:
        backend: who computes it.
        q_lens: S query lengths; they tile the pack.
        k_lens: S key lengths.
        runs: R pairs (first token, length); concatenated they are the segments' keys.
        gather_K: i64[K], the runs as token indices.
        cu_q: i32[S + 1], cumulative query lengths.
        cu_k: i32[S + 1], cumulative key lengths.
    """

    backend: Backend
    q_lens: list[int]
    k_lens: list[int]
    runs: list[tuple[int, int]]
    gather_K: torch.Tensor
    cu_q: torch.Tensor
    cu_k: torch.Tensor
    _masks: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict[tuple[int, int], torch.Tensor])
    _cached: int = 0

    @classmethod
    def of(cls, pack: "Pack", backend: Backend, device: torch.device) -> "PackLayout":
        """Takes the layout from a pack."""
        starts, lengths = pack.kv_run_start.tolist(), pack.kv_run_len.tolist()
        runs = list(zip(starts, lengths, strict=True))
        cu_q, cu_k = torch.from_numpy(pack.cu_seqlens_q.copy()), torch.from_numpy(pack.cu_seqlens_k.copy())
        gather_K = torch.cat([torch.arange(start, start + length) for start, length in runs])
        return cls(
            backend,
            q_lens=cu_q.diff().tolist(),
            k_lens=cu_k.diff().tolist(),
            runs=runs,
            gather_K=gather_K.to(device),
            cu_q=cu_q.to(device),
            cu_k=cu_k.to(device),
        )

    @property
    def single_path(self) -> bool:
        """True when the segments' keys are the pack itself, so that nothing need be gathered."""
        return len(self.runs) == len(self.q_lens)

    def mask(self, q_len: int, k_len: int, device: torch.device) -> torch.Tensor:
        """The mask bool[q_len, k_len] of a segment with a prefix, aligned at the bottom right."""
        mask = self._masks.get((q_len, k_len))
        if mask is None:
            mask = torch.ones(q_len, k_len, dtype=torch.bool, device=device).tril_(k_len - q_len)
            if self._cached + mask.numel() <= _MASK_CACHE:
                self._masks[q_len, k_len] = mask
                self._cached += mask.numel()
        return mask


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


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    pack_layout: PackLayout | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Transformers' attention function for packs.

    Args:
        module: the attention layer.
        query: [1, H, T, D].
        key: [1, G, T, D], G key heads that each serve H / G query heads.
        value: [1, G, T, D].
        attention_mask: None; the layout is the mask.
        scaling: factor of the scores; D ** -0.5 by default.
        dropout: 0.
        sliding_window: tokens that a token may look at, itself included; no sequence of the pack may be longer.
        pack_layout: the layout of the pack.
        **kwargs: what else the layer says.

    Returns:
        ([1, T, H, D], None).

    Raises:
        ConfigError: the layer asks for something that this attention does not do exactly.
    """
    asked = [name for name in _MEANINGLESS_KWARGS if kwargs.get(name) is not None]
    if asked or dropout or attention_mask is not None or pack_layout is None or query.shape[0] != 1:
        wanted = ", ".join(asked) or "a mask, dropout or a batch instead of one pack"
        raise ConfigError(
            f"model.path: {type(module).__name__} wants {wanted}, which packs cannot do", field="model.path"
        )
    if sliding_window is not None and sliding_window < max(pack_layout.k_lens):
        raise ConfigError(
            f"model.path: {type(module).__name__} attends to {sliding_window} tokens at a time, but a call has "
            f"{max(pack_layout.k_lens)}, which packs cannot do; set engine.max_model_len to {sliding_window} or less",
            field="model.path",
        )
    if query.dtype != value.dtype:  # under autocast the rotary embedding leaves queries and keys in float32
        query, key = query.to(value.dtype), key.to(value.dtype)
    run = _flash if pack_layout.backend == "flash" else _segments
    return run(query[0], key[0], value[0], scaling, pack_layout)[None], None


def _gathered(key_GTD: torch.Tensor, value_GTD: torch.Tensor, layout: PackLayout) -> tuple[torch.Tensor, torch.Tensor]:
    if layout.single_path:
        return key_GTD, value_GTD
    gather: Callable[..., torch.Tensor] = _GatherRuns.apply  # pyright: ignore[reportUnknownMemberType, reportAssignmentType]
    return gather(key_GTD, layout), gather(value_GTD, layout)


def _segments(
    query_HTD: torch.Tensor, key_GTD: torch.Tensor, value_GTD: torch.Tensor, scaling: float | None, layout: PackLayout
) -> torch.Tensor:
    """One SDPA call per segment. Returns [T, H, D]."""
    key_GKD, value_GKD = _gathered(key_GTD, value_GTD, layout)
    parts = zip(
        query_HTD.split(layout.q_lens, 1),
        key_GKD.split(layout.k_lens, 1),
        value_GKD.split(layout.k_lens, 1),
        strict=True,
    )
    return torch.cat([_one_segment(q, k, v, scaling, layout).transpose(0, 1) for q, k, v in parts])


def _one_segment(
    query_HQD: torch.Tensor, key_GKD: torch.Tensor, value_GKD: torch.Tensor, scaling: float | None, layout: PackLayout
) -> torch.Tensor:
    q_len, k_len = query_HQD.shape[1], key_GKD.shape[1]
    # SDPA aligns is_causal at the top left, which is right only when there is no prefix.
    no_prefix = q_len == k_len
    mask_QK = None if no_prefix or q_len == 1 else layout.mask(q_len, k_len, query_HQD.device)
    return scaled_dot_product_attention(
        query_HQD[None],
        key_GKD[None],
        value_GKD[None],
        attn_mask=mask_QK,
        is_causal=no_prefix,
        scale=scaling,
        enable_gqa=query_HQD.shape[0] != key_GKD.shape[0],
    )[0]


def _flash(
    query_HTD: torch.Tensor, key_GTD: torch.Tensor, value_GTD: torch.Tensor, scaling: float | None, layout: PackLayout
) -> torch.Tensor:
    """One call of flash-attn over all segments (Dao 2023, arXiv 2307.08691). Returns [T, H, D]."""
    version = _flash_version()
    if version is None or version < _BOTTOM_RIGHT:
        raise ConfigError("flash-attn 2.1 or later is needed: before, its causal masks were aligned at the top left")
    attention = importlib.import_module("flash_attn").flash_attn_varlen_func
    key_GKD, value_GKD = _gathered(key_GTD, value_GTD, layout)
    return attention(
        query_HTD.transpose(0, 1).contiguous(),
        key_GKD.transpose(0, 1).contiguous(),
        value_GKD.transpose(0, 1).contiguous(),
        cu_seqlens_q=layout.cu_q,
        cu_seqlens_k=layout.cu_k,
        max_seqlen_q=max(layout.q_lens),
        max_seqlen_k=max(layout.k_lens),
        softmax_scale=scaling,
        causal=True,
    )


def _no_mask(*args: Any, **kwargs: Any) -> None:
    return None


AttentionInterface.register(ATTENTION, attend)  # pyright: ignore[reportUnknownMemberType]
AttentionMaskInterface.register(ATTENTION, _no_mask)  # pyright: ignore[reportUnknownMemberType]
