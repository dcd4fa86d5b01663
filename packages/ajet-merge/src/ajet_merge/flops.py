"""How much arithmetic a training step over calls, rows or a forest takes, for a decoder-only transformer."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ._arguments import integer
from .errors import MergeError

_MIXTURES = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True, slots=True)
class Work:
    """What one way of training runs.

    Attributes:
        tokens: tokens that run forward.
        pairs: (token, ancestor or itself) pairs that attention compares, in each head of each layer.
        predictions: hidden states that are turned into logits.
    """

    tokens: int
    pairs: int
    predictions: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a dense decoder with grouped-query attention and a gated feed-forward part (Llama, Qwen, ...).

    Attributes:
        layers: number of layers.
        hidden: width of the residual stream.
        intermediate: width of the feed-forward part.
        heads: query heads.
        kv_heads: key and value heads.
        head_dim: width of a head.
        vocabulary: number of token ids.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    def __post_init__(self) -> None:
        for field in fields(self):
            integer(field.name, getattr(self, field.name), least=1)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ModelShape":
        """The shape in a Hugging Face `config.json`; of its `text_config` if it has one.

        Raises:
            MergeError: a size is missing or no positive integer, or the model is a mixture of experts.
        """
        config = config.get("text_config", config)
        if not isinstance(config, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # it is somebody's file
            raise MergeError(f"config: text_config = {config!r}: must be an object with the sizes of the text model")
        for name in _MIXTURES:
            if config.get(name):
                raise MergeError(f"config: {name} = {config[name]!r}: estimates are for dense models only")
        heads = _size(config, "num_attention_heads")
        hidden = _size(config, "hidden_size")
        return cls(
            layers=_size(config, "num_hidden_layers"),
            hidden=hidden,
            intermediate=_size(config, "intermediate_size"),
            heads=heads,
            kv_heads=_size(config, "num_key_value_heads", heads),
            head_dim=_size(config, "head_dim", hidden // heads),
            vocabulary=_size(config, "vocab_size"),
        )

    def training_flops(self, work: Work) -> int:
        """Floating-point operations of forward and backward, a multiplication and an addition being two.

        Counted as in Kaplan et al., "Scaling Laws for Neural Language Models" (arXiv:2001.08361, table 1), with causal
        attention's real number of pairs, and logits only where a token is trained. Backward costs twice the forward.
        """
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        feed_forward = 3 * self.hidden * self.intermediate
        forward = (
            2 * work.tokens * self.layers * (attention + feed_forward)
            + 4 * work.pairs * self.layers * self.heads * self.head_dim
            + 2 * work.predictions * self.hidden * self.vocabulary
        )
        return 3 * forward


def _size(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = config.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise MergeError(f"config: {name} = {value!r}: must be a positive integer")
    return value
