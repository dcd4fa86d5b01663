"""Which models are computed exactly, when calls share prefixes in the engine's cache and in the trainer's packs.

Sharing a prefix is exact when attention is causal, positions come from `position_ids` alone, nothing is random and no
token's result depends on which other tokens are in the pass. The torch engine's attention is full besides; the
trainer's has windows and capped scores, and what a model's layers cannot share it trains row by row. Better refused at
load than wrong in silence: a wrong log-probability looks like a learning problem days later.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

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
_NOT_CAUSAL = ("is_encoder_decoder", "use_bidirectional_attention")


Level = Literal["forest", "rows", "calls"]
"""How much of a forward pass calls share. `forest`: every common prefix. `rows`: calls that continue each other, one
linear row a pass. `calls`: nothing, one call a pass."""
LEVELS: tuple[Level, ...] = ("forest", "rows", "calls")
"""From most to least."""


class Sharing(NamedTuple):
    """How much the calls of a batch can share in the trainer.

    Attributes:
        level: how much.
        reason: why no more; empty for `forest`.
    """

    level: Level
    reason: str


def sharing_of(model: "PreTrainedModel") -> Sharing:
    """Returns how much the model's layers can share exactly."""
    config: Any = model.config.get_text_config()
    drops = list(_capacities(config))
    if drops:
        return Sharing("calls", "; ".join(drops))
    reasons = [
        *_architecture(model, config),
        *_layer_types(config),
        *_chunks(config),
        *_flags(config, ("alibi",)),
    ]
    return Sharing("rows" if reasons else "forest", "; ".join(reasons))


def refuse_untrainable(model: "PreTrainedModel") -> None:
    """Checks a model for the trainer, which trains what cannot share a forest in linear rows (`sharing_of`).

    Raises:
        ConfigError: names everything about the model that would not be trained exactly, and what helps.
    """
    config: Any = model.config.get_text_config()
    _refuse(model, "trained", [*_flags(config, _NOT_CAUSAL), *_rope(config), *_dropouts(config)])


def refuse_unsupported(model: "PreTrainedModel", longest: int) -> None:
    """Checks a model for the torch engine.

    Args:
        model: its weights do not matter.
        longest: tokens of the longest sequence that is ever sampled.

    Raises:
        ConfigError: names everything about the model that would not be computed exactly, and what helps.
    """
    config: Any = model.config.get_text_config()
    _refuse(
        model,
        "run and trained",
        [
            *_architecture(model, config),
            *_flags(config, (*_NOT_CAUSAL, "alibi")),
            *_layer_types(config),
            *_windows(config, longest),
            *_rope(config),
            *(f"it has {name}={_value(config, name)} (softcapping)" for name in _SOFTCAPS if _value(config, name)),
            *_capacities(config),
            *_dropouts(config),
        ],
    )


def _refuse(model: "PreTrainedModel", what: str, problems: list[str]) -> None:
    if problems:
        raise ConfigError(
            f"model.path: {type(model).__name__} cannot be {what} exactly: {'; '.join(problems)}", field="model.path"
        )


def _architecture(model: "PreTrainedModel", config: Any) -> Iterator[str]:
    if not getattr(model, "_supports_attention_backend", False):
        yield "it does not let its attention function be replaced"
    stateful = [name for name in vars(config) if any(word in name for word in _STATEFUL) and vars(config)[name]]
    if getattr(model, "_is_stateful", False) or stateful:
        yield "it carries a recurrent state, which is not a cache of keys and values"


def _flags(config: Any, names: tuple[str, ...]) -> Iterator[str]:
    yield from (f"it has {name}={getattr(config, name)}" for name in names if getattr(config, name, False))


def _layer_types(config: Any) -> Iterator[str]:
    kinds: list[str] = list(getattr(config, "layer_types", None) or ())
    others = set(kinds) - _LAYERS
    if others:
        yield f"it has layers of type {', '.join(sorted(others))}"


def windowed_layers(config: Any) -> tuple[int, int] | None:
    """Returns (how many layers have a sliding window, tokens it shows), or None if no layer has one."""
    kinds: list[str] = list(getattr(config, "layer_types", None) or ())
    size = getattr(config, "sliding_window", None)
    everywhere = config.num_hidden_layers if getattr(config, "use_sliding_window", True) else 0
    layers = kinds.count("sliding_attention") if kinds else everywhere
    return (layers, size) if layers and isinstance(size, int) else None


def _windows(config: Any, longest: int) -> Iterator[str]:
    windowed = windowed_layers(config)
    if windowed is not None and windowed[1] < longest:
        yield _too_short("sliding_window", windowed[1])
    size = getattr(config, "attention_chunk_size", None)
    if isinstance(size, int) and size < longest:
        yield _too_short("attention_chunk_size", size)


def _too_short(name: str, size: int) -> str:
    return f"it attends to {size} tokens at a time ({name}); set engine.max_model_len to {size} or less"


def _chunks(config: Any) -> Iterator[str]:
    size = getattr(config, "attention_chunk_size", None)
    if isinstance(size, int):
        yield f"it attends within chunks of {size} tokens (attention_chunk_size)"


def _rope(config: Any) -> Iterator[str]:
    parameters: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    nested = [item for item in parameters.values() if isinstance(item, dict)]
    for item in nested or [parameters]:
        kind = item.get("rope_type", "default")
        if kind not in _ROPE_TYPES:
            yield f"its rotary embedding is of type {kind!r}; {', '.join(sorted(_ROPE_TYPES))} are exact"


def _capacities(config: Any) -> Iterator[str]:
    values = ((name, _value(config, name)) for name in _CAPACITIES)
    yield from (f"it drops tokens by batch ({name}={value})" for name, value in values if value)


def _dropouts(config: Any) -> Iterator[str]:
    values = ((name, _value(config, name)) for name in _DROPOUTS)
    yield from (f"it has {name}={value}; set it to 0 in config.json" for name, value in values if value)


def _value(config: Any, name: str) -> float:
    value = getattr(config, name, None)
    return float(value) if isinstance(value, int | float) else 0.0
