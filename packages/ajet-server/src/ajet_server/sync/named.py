"""The model of a weight version that an evaluation names, beside the one that is being trained."""

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor, nn

from ajet_core.errors import NotFoundError
from ajet_server.datadir import checkpoint_steps
from ajet_server.engines.attention import ATTENTION
from ajet_server.models.load import load_causal_lm
from ajet_server.train import state
from ajet_server.train.checkpoint import Settings, check_settings, read_manifest
from ajet_server.train.lora import adapter_scales, frozen_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ajet_server.train.trainer import Trainer

_SAVED = "base_model.model."
"""What peft puts in front of a layer's name."""


class AdaptedLinear(nn.Module):
    """A layer and a low-rank update of its own: `base(x) + scale * (x A^T) B^T`, the update in the adapter's format.

    Args:
        base: the layer.
        down: A, f[R, in].
        up: B, f[out, R].
        scale: see above.
    """

    def __init__(self, base: nn.Module, down: Tensor, up: Tensor, scale: float) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(down, requires_grad=False)
        self.up = nn.Parameter(up, requires_grad=False)
        self.scale = scale

    def forward(self, inputs: Tensor) -> Tensor:
        """f[..., in] -> f[..., out]."""
        whole = self.base(inputs)
        update = nn.functional.linear(nn.functional.linear(inputs.to(self.down.dtype), self.down), self.up)
        return (whole + self.scale * update).to(whole.dtype)


def named_model(trainer: "Trainer", checkpoints: Path, version: int, live: "PreTrainedModel") -> "PreTrainedModel":
    """Returns a model of the weights as they were at a version: 0 is the model as loaded, others have a checkpoint.

    With an adapter it shares everything else with the trainer's frozen model and with `live`, so only the adapter is
    held once more. The update is then added to a layer's output instead of its weights, which is the same to rounding.

    Args:
        trainer: of the job.
        checkpoints: folder of the checkpoints.
        version: of the weights.
        live: the engine's model. What training changes in it is not shared.

    Raises:
        NotFoundError: there is no checkpoint of that version.
        StorageError: it is corrupted.
        ConfigError: it is of another model or adapter.
    """
    folder = None if version == 0 else _checked(trainer, checkpoints, version)
    if not isinstance(trainer.model, PeftModel):
        return _whole(trainer, folder)
    model = _frozen(trainer.model, live)
    if folder is not None:
        _adapt(model, trainer.model, folder)
    return model


def _checked(trainer: "Trainer", checkpoints: Path, version: int) -> Path:
    folder = checkpoint_steps(checkpoints).get(version)
    if folder is None:
        raise NotFoundError(f"weights: the checkpoint of version {version} is not there any more", field="weights")
    part = state.ADAPTER if isinstance(trainer.model, PeftModel) else state.MODEL
    check_settings(folder, read_manifest(folder, f"{part}/"), Settings.of(trainer.job))
    return folder


def _whole(trainer: "Trainer", folder: Path | None) -> "PreTrainedModel":
    config = trainer.job.model
    if folder is not None:
        config = config.model_copy(update={"path": str(folder / state.MODEL)})
    return load_causal_lm(config, ATTENTION)


def _frozen(trained: PeftModel, live: "PreTrainedModel") -> "PreTrainedModel":
    """Copies the modules of `live` and none of its parameters: those that training changes are the frozen ones."""
    frozen = frozen_weights(trained)
    parameters = {id(parameter): frozen.get(name, parameter) for name, parameter in live.named_parameters()}
    return copy.deepcopy(live, cast("dict[int, Any]", parameters))


def _adapt(model: "PreTrainedModel", trained: PeftModel, folder: Path) -> None:
    saved = load_file(folder / state.ADAPTER / "adapter_model.safetensors")
    for name, scale in adapter_scales(trained).items():
        base = model.get_submodule(name)
        down, up = (saved[f"{_SAVED}{name}.lora_{part}.weight"].to(model.device) for part in "AB")
        model.set_submodule(name, AdaptedLinear(base, down, up, scale))
