"""Which models are computed exactly, when calls share prefixes in the engine's cache and in the trainer's packs.

One rule for both, because a model must be sampled and trained. Sharing a prefix is exact when attention is causal and
full, positions come from `position_ids` alone, nothing is random and no token's result depends on which other tokens
are in the pass. Better refused at load than wrong in silence: a wrong log-probability looks like a learning problem
days later.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ajet_core.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LAYERS = frozenset({"full_attention", "sliding_attention"})
_ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Those whose angle depends on the position alone. `dynamic` and `longrope` turn all keys anew once a sequence grows
long, so keys that were stored or that share a pass with a longer call would be wrong."""
_DROPOUTS = (
    "attention_dropout",
    "attention_probs_dropout_prob",
    "attn_pdrop",
    "embd_pdrop",
    "hidden_dropout",
    "hidden_dropout_prob",
    "resid_pdrop",
    "dropout",
)
_SOFTCAPS = ("attn_logit_softcapping", "final_logit_softcapping")
_CAPACITIES = ("expert_capacity", "capacity_factor", "moe_capacity_factor", "moe_expert_capacity_factor")
_STATEFUL = ("mamba", "ssm", "rwkv", "linear_attn", "recurrent")
_OTHERS = ("is_encoder_decoder", "alibi", "use_bidirectional_attention")


def refuse_unsupported(model: "PreTrainedModel", longest: int) -> None:
    """Checks a model.

    Args:
        model: its weights do not matter.
        longest: tokens of the longest sequence that is ever sampled or trained.

    Raises:
        ConfigError: names everything about the model that would not be computed exactly, and what helps.
    """
    config: Any = model.config.get_text_config()
    problems = [
        *_architecture(model, config),
        *_windows(config, longest),
        *_rope(config),
        *(f"it has {name}={_value(config, name)} (softcapping)" for name in _SOFTCAPS if _value(config, name)),
        *(f"it drops tokens by batch ({name}={_value(config, name)})" for name in _CAPACITIES if _value(config, name)),
        *(
            f"it has {name}={_value(config, name)}; set it to 0 in config.json"
            for name in _DROPOUTS
            if _value(config, name)
        ),
    ]
    if problems:
        raise ConfigError(
            f"model.path: {type(model).__name__} cannot be run and trained exactly: {'; '.join(problems)}",
            field="model.path",
        )


def _architecture(model: "PreTrainedModel", config: Any) -> Iterator[str]:
    if not getattr(model, "_supports_attention_backend", False):
        yield "it does not let its attention function be replaced"
    stateful = [name for name in vars(config) if any(word in name for word in _STATEFUL) and vars(config)[name]]
    if getattr(model, "_is_stateful", False) or stateful:
        yield "it carries a recurrent state, which is not a cache of keys and values"
    yield from (f"it has {name}={getattr(config, name)}" for name in _OTHERS if getattr(config, name, False))


def _windows(config: Any, longest: int) -> Iterator[str]:
    kinds: set[str] = set(getattr(config, "layer_types", None) or ())
    if kinds - _LAYERS:
        yield f"it has layers of type {', '.join(sorted(kinds - _LAYERS))}"
    windowed = "sliding_attention" in kinds if kinds else getattr(config, "use_sliding_window", True)
    for name, used in (("sliding_window", windowed), ("attention_chunk_size", True)):
        size = getattr(config, name, None)
        if used and isinstance(size, int) and size < longest:
            yield f"it attends to {size} tokens at a time ({name}); set engine.max_model_len to {size} or less"


def _rope(config: Any) -> Iterator[str]:
    parameters: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    nested = [item for item in parameters.values() if isinstance(item, dict)]
    for item in nested or [parameters]:
        kind = item.get("rope_type", "default")
        if kind not in _ROPE_TYPES:
            yield f"its rotary embedding is of type {kind!r}; {', '.join(sorted(_ROPE_TYPES))} are exact"


def _value(config: Any, name: str) -> float:
    value = getattr(config, name, None)
    return float(value) if isinstance(value, int | float) else 0.0
