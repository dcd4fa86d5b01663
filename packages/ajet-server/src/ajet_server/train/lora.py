"""Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) by peft, and the weights that an engine takes."""

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, TaskType, get_peft_model
from peft.tuners.lora import LoraLayer

from ajet_core.config import LoraConfig
from ajet_core.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ADAPTER = "default"


def add_adapter(model: "PreTrainedModel", lora: LoraConfig, seed: int) -> PeftModel:
    """Puts a fresh adapter beside the frozen weights of `model`, in place. The same seed gives the same adapter.

    Without dropout, so that log-probabilities are the same in every pass; never on the output layer, so that its input
    alone decides the logits.

    Raises:
        ConfigError: `lora.targets` names layers that the model does not have.
    """
    if isinstance(lora.targets, list) and "lm_head" in lora.targets:
        raise ConfigError("lora.targets: 'lm_head' cannot have an adapter; remove it", field="lora.targets")
    config = PeftLoraConfig(
        r=lora.rank,
        lora_alpha=cast(int, lora.alpha),  # peft takes any number and says int
        target_modules=lora.targets,
        lora_dropout=0.0,
        bias="none",
        task_type=TaskType.CAUSAL_LM,
    )
    with torch.random.fork_rng(), warnings.catch_warnings():
        # peft asks transformers for a property under its old name.
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
        torch.manual_seed(seed)
        try:
            adapted = get_peft_model(model, config)
        except ValueError as error:
            raise ConfigError(
                f"lora.targets: {lora.targets!r} does not fit the model: {error}", field="lora.targets"
            ) from error
    return cast(PeftModel, adapted).eval()


def weight_shapes(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    """Returns name and shape of all that `merged_weights` yields, without computing any of it."""
    if not isinstance(model, PeftModel):
        return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    return {name: tuple(layer.base_layer.weight.shape) for name, layer in _adapted(model)}


def merged_weights(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (name in the plain model's `state_dict`, weight) for every weight that training changes.

    With an adapter: `W + scale * B @ A` of each adapted layer, summed in float32 at least and rounded once; the model
    itself is not touched. Without: every parameter. A sum is made when it is asked for and not kept here, so one exists
    at a time if the caller lets go of each before it asks for the next.
    """
    if not isinstance(model, PeftModel):
        return ((name, parameter.detach()) for name, parameter in model.named_parameters())
    return ((name, _merged(layer)) for name, layer in _adapted(model))


def frozen_weights(model: PeftModel) -> dict[str, torch.nn.Parameter]:
    """Returns the weights below the adapters by their names in the plain model. They never change."""
    return {name: layer.base_layer.weight for name, layer in _adapted(model)}


def adapter_scales(model: PeftModel) -> dict[str, float]:
    """Returns what the update of each adapted layer is scaled by, by the layer's name in the plain model."""
    return {name.removesuffix(".weight"): float(layer.scaling[_ADAPTER]) for name, layer in _adapted(model)}


def _adapted(model: PeftModel) -> Iterator[tuple[str, Any]]:
    """Yields the layers that have an adapter, by the names of their weights in the plain model."""
    for name, module in model.get_base_model().named_modules():
        if isinstance(module, LoraLayer):
            yield f"{name}.weight", module


@torch.no_grad()
def _merged(layer: Any) -> torch.Tensor:
    base: torch.Tensor = layer.base_layer.weight
    delta: torch.Tensor = layer.get_delta_weight(_ADAPTER)
    wide = torch.promote_types(torch.promote_types(base.dtype, delta.dtype), torch.float32)
    return (base.to(wide) + delta.to(wide)).to(base.dtype)
