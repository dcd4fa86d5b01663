"""Refuses models whose forward pass the engine would not compute exactly.

Better refused at load than wrong in silence: a wrong log-probability looks like a learning problem days later.
"""

from collections.abc import Iterator
from typing import Any

from transformers import PreTrainedModel

from ajet_core.errors import ConfigError

_ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Those whose angle depends on the position alone. `dynamic` and `longrope` turn all keys anew once a sequence grows
long, so keys that were stored or that share a pass with a longer call would be wrong."""


def refuse_unsupported(model: PreTrainedModel, max_model_len: int) -> None:
    """Checks a model.

    Raises:
        ConfigError: names everything about the model that the engine does not compute.
    """
    config: Any = model.config.get_text_config()
    problems = [*_architecture(model, config), *_windows(config, max_model_len), *_rope(config)]
    if problems:
        raise ConfigError(
            f"model.path: the torch engine cannot run {type(model).__name__}: {'; '.join(problems)}. Use another model",
            field="model.path",
        )


def _architecture(model: PreTrainedModel, config: Any) -> Iterator[str]:
    if not getattr(model, "_supports_attention_backend", False):
        yield "it does not let its attention function be replaced"
    if getattr(model, "_is_stateful", False):
        yield "it carries a recurrent state (state-space layers), which is not a cache of keys and values"
    for name in ("is_encoder_decoder", "alibi", "use_bidirectional_attention"):
        if getattr(config, name, False):
            yield f"it has {name}={getattr(config, name)}"
    if (cap := getattr(config, "attn_logit_softcapping", None)) is not None:
        yield f"it caps attention scores (attn_logit_softcapping={cap})"


def _windows(config: Any, max_model_len: int) -> Iterator[str]:
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        yield f"it has layers of type {', '.join(sorted(kinds))}"
    for name in ("sliding_window", "attention_chunk_size"):
        size = getattr(config, name, None)
        unused = name == "sliding_window" and getattr(config, "use_sliding_window", None) is False
        if isinstance(size, int) and size < max_model_len and not unused:
            yield f"it attends to {size} tokens at a time ({name}); with engine.max_model_len={size} it would be exact"


def _rope(config: Any) -> Iterator[str]:
    parameters: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    nested = [item for item in parameters.values() if isinstance(item, dict)]
    for item in nested or [parameters]:
        kind = item.get("rope_type", "default")
        if kind not in _ROPE_TYPES:
            yield f"its rotary embedding is of type {kind!r}; {', '.join(sorted(_ROPE_TYPES))} are exact"
