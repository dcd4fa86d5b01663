"""The attention function that transformers calls in every layer."""

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from ajet_core.errors import ConfigError
from ajet_server.train.attention.backends import Backend
from ajet_server.train.attention.dense import by_dense_mask
from ajet_server.train.attention.layout import PackLayout
from ajet_server.train.attention.rectangles import by_rectangles
from ajet_server.train.attention.scores import Scores
from ajet_server.train.attention.segments import by_flash, by_segments

ATTENTION = "ajet_pack"
"""The name under which `attend` is registered with transformers."""

_MEANINGLESS_KWARGS = ("s_aux", "position_bias")
"""What a layer may ask of its attention function that no backend does."""

_RUN = {"segments": by_segments, "rectangles": by_rectangles, "dense": by_dense_mask, "flash": by_flash}


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
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
        sliding_window: positions that a token may look at, its own included.
        softcap: bound of the scores.
        pack_layout: the layout of the pack.
        **kwargs: what else the layer says.

    Returns:
        ([1, T, H, D], None).

    Raises:
        ConfigError: the layer asks for something that this attention does not do exactly.
    """
    asked = [name for name in _MEANINGLESS_KWARGS if kwargs.get(name) is not None]
    asked += ["is_causal=False"] * (getattr(module, "is_causal", True) is False)
    if asked or dropout or attention_mask is not None or pack_layout is None or query.shape[0] != 1:
        wanted = ", ".join(asked) or "a mask, dropout or a batch instead of one pack"
        raise ConfigError(
            f"model.path: {type(module).__name__} wants {wanted}, which packs cannot do", field="model.path"
        )
    if query.dtype != value.dtype:  # under autocast the rotary embedding leaves queries and keys in float32
        query, key = query.to(value.dtype), key.to(value.dtype)
    scores = Scores(scaling or query.shape[-1] ** -0.5, sliding_window, softcap)
    plain = scores.window_within(pack_layout.longest) is None and softcap is None and query.shape[-1] == value.shape[-1]
    run = _RUN[_layer_backend(pack_layout.backend, plain)]
    return run(query[0], key[0], value[0], scores, pack_layout)[None], None


def _layer_backend(backend: Backend, plain: bool) -> Backend:
    """Rectangles have no mask and one head size, so a window in sight, a softcap or other values go to segments."""
    return "segments" if backend == "rectangles" and not plain else backend


def _no_mask(*args: Any, **kwargs: Any) -> None:
    return None


def register() -> None:
    """Makes `attend` known to transformers under the name `ATTENTION`."""
    AttentionInterface.register(ATTENTION, attend)  # pyright: ignore[reportUnknownMemberType]
    AttentionMaskInterface.register(ATTENTION, _no_mask)  # pyright: ignore[reportUnknownMemberType]
