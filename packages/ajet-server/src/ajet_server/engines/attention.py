"""The attention function of the engine: new tokens of many calls in one pass, against keys and values in slots.

transformers' model code runs unchanged and calls `engine_attention` in every layer; the pass's `StepPlan` reaches it
as a keyword argument. There is no mask of transformers': for an attention function of this name it makes none.

Shapes: T new tokens of all calls, B decoding rows, H heads, H_kv key heads, D head size, L longest row.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from ajet_core.errors import ConfigError
from ajet_server.engines.kv_slots import SlotStore

ATTENTION = "ajet_engine"
"""The name under which transformers knows it (`attn_implementation`)."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive new tokens of one prompt.

    Attributes:
        slot: where the call's keys and values are.
        start: position of the first of them; what is before is in the slot already.
        stop: position after the last.
        offset: place of the first in the pass.
        mask: bool[stop - start, stop], True where a token may look; None if start is 0: then it is plain causal.
    """

    slot: int
    start: int
    stop: int
    offset: int
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass: first one token for each of the slots 0..B-1, then the segments.

    Attributes:
        input_ids: i64[1, T].
        position_ids: i64[1, T].
        slots: i64[B], 0..B-1.
        positions: i64[B], of the decoding rows' new tokens.
        longest: L, tokens of the longest decoding row with its new one.
        mask: bool[B, 1, 1, L], True where a row may look; None if all rows are equally long.
    """

    store: SlotStore
    input_ids: Tensor
    position_ids: Tensor
    slots: Tensor
    positions: Tensor
    longest: int
    mask: Tensor | None
    segments: tuple[Segment, ...]


def engine_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    ajet_step: StepPlan | None = None,
    **extras: Any,
) -> tuple[Tensor, None]:
    """Stores the new keys and values and attends to everything before.

    Args:
        query: f[1, H, T, D].
        key: f[1, H_kv, T, D]; value: f[1, H_kv, T, D_v].
        extras: other things that models pass to their attention functions.

    Returns:
        f[1, T, H, D_v], and no attention weights.
    """
    _refuse_extras(module, attention_mask, extras)
    if ajet_step is None:
        raise ConfigError(
            f"model.path: {type(module).__name__} does not hand keyword arguments on to its attention function; "
            "the torch engine cannot run this model",
            field="model.path",
        )
    keys, values = ajet_step.store.layer(_layer_index(module), key, value)
    parts = [_decode(ajet_step, query, key, value, keys, values, scaling)] if len(ajet_step.slots) else []
    parts += [_prefill(segment, query, key, value, keys, values, scaling) for segment in ajet_step.segments]
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[None], None


def _decode(
    plan: StepPlan, query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, scaling: float | None
) -> Tensor:
    """Returns f[B, H, D_v] for the decoding rows.

    The H / H_kv query heads that share a key head are laid out as query positions of that head, so the keys and
    values of the whole batch are used where they lie, neither copied nor repeated.
    """
    rows, kv_heads = len(plan.slots), keys.shape[1]
    keys[plan.slots, :, plan.positions] = key[0, :, :rows].transpose(0, 1)
    values[plan.slots, :, plan.positions] = value[0, :, :rows].transpose(0, 1)
    grouped = query[0, :, :rows].transpose(0, 1).reshape(rows, kv_heads, -1, query.shape[-1])
    out = scaled_dot_product_attention(
        grouped,
        keys[:rows, :, : plan.longest],
        values[:rows, :, : plan.longest],
        attn_mask=plan.mask,
        scale=scaling,
    )
    return out.reshape(rows, query.shape[1], -1)


def _prefill(
    part: Segment, query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, scaling: float | None
) -> Tensor:
    """Returns f[n, H, D_v] for one segment.

    `is_causal` aligns its triangle to the top left, which is right only when nothing lies before the segment; else the
    mask says what may be seen.
    """
    new = slice(part.offset, part.offset + part.stop - part.start)
    keys[part.slot, :, part.start : part.stop] = key[0, :, new]
    values[part.slot, :, part.start : part.stop] = value[0, :, new]
    out = scaled_dot_product_attention(
        query[:, :, new],
        keys[part.slot : part.slot + 1, :, : part.stop],
        values[part.slot : part.slot + 1, :, : part.stop],
        attn_mask=part.mask,
        is_causal=part.mask is None,
        scale=scaling,
        enable_gqa=query.shape[1] != keys.shape[1],
    )
    return out[0].transpose(0, 1)


def _layer_index(module: nn.Module) -> int:
    index = getattr(module, "layer_idx", None)
    if not isinstance(index, int):
        raise ConfigError(
            f"model.path: {type(module).__name__} does not number its layers; the torch engine cannot run this model",
            field="model.path",
        )
    return index


def _refuse_extras(module: nn.Module, attention_mask: Tensor | None, extras: dict[str, Any]) -> None:
    """Refuses what would change the result and is not computed here. A sliding window is checked at load instead."""
    present = {name: extras.get(name) for name in ("softcap", "s_aux", "position_bias", "head_mask", "indices")}
    wrong = [name for name, item in present.items() if item is not None]
    wrong += ["attention_mask"] if attention_mask is not None else []
    wrong += ["is_causal=False"] if getattr(module, "is_causal", True) is False else []
    if wrong:
        raise ConfigError(
            f"model.path: {type(module).__name__} attends with {', '.join(wrong)}, which the torch engine does not "
            "compute; use another model",
            field="model.path",
        )


AttentionInterface.register(ATTENTION, engine_attention)
