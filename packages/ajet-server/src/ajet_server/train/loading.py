"""Loads a job's model for training, and decides how much of a forward pass its calls share."""

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils.checkpoint import checkpoint as activation_checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from ajet_core.config import Job
from ajet_core.errors import ConfigError
from ajet_server.models.load import load_causal_lm
from ajet_server.models.supported import LEVELS, Level, sharing_of
from ajet_server.train import state
from ajet_server.train.attention import ATTENTION
from ajet_server.train.linear import use_own_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_log = logging.getLogger(__name__)


def load_plain(job: Job, checkpoint: Path | None, dtype: torch.dtype) -> "PreTrainedModel":
    """Loads the model, with `method: full` in float32 whatever the job says.

    An update of 1e-5 is lost in a bfloat16 weight, which has 8 significant bits. Matrix products then run in the job's
    format (autocast), and so does the engine.

    Args:
        job: the job.
        checkpoint: folder of a checkpoint, which a model that is trained in full comes from; None for the job's own.
        dtype: the job's number format.
    """
    config = job.model
    if job.method == "full" and checkpoint is not None:
        config = config.model_copy(update={"path": str(checkpoint / state.MODEL)})
    if job.method == "full" and dtype != torch.float32:
        config = config.model_copy(update={"dtype": "float32"})
    return load_causal_lm(config, ATTENTION)


def choose_level(job: Job, plain: "PreTrainedModel") -> Level:
    """Returns how much calls share, by `trainer.sharing` and by what the model's layers can; says why in the log.

    Below `forest` the model gets its own attention back.

    Raises:
        ConfigError: the job wants more than the model can, or an attention backend that would have no effect.
    """
    possible, wanted = sharing_of(plain), job.trainer.sharing
    if wanted == "auto":
        level, reason = possible.level, possible.reason
    elif LEVELS.index(wanted) < LEVELS.index(possible.level):
        raise ConfigError(
            f"trainer.sharing: this model cannot share by {wanted!r}: {possible.reason}; use {possible.level!r} or "
            "'auto'",
            field="trainer.sharing",
        )
    else:
        level, reason = wanted, f"trainer.sharing is {wanted!r}"
    if level == "forest":
        return level
    if job.trainer.attention != "auto":
        raise ConfigError(
            f"trainer.attention: {job.trainer.attention!r} has no effect, because this model is trained on linear rows "
            f"with its own attention ({reason}); use 'auto'",
            field="trainer.attention",
        )
    use_own_attention(plain)
    _log.warning("training on linear rows (%s) instead of a forest: %s", level, reason)
    return level


def checkpoint_activations(plain: "PreTrainedModel") -> None:
    """Makes every layer compute its activations again in the backward pass instead of keeping them."""
    for module in plain.modules():
        if isinstance(module, GradientCheckpointingLayer):
            layer = cast(Any, module)
            layer.gradient_checkpointing = True
            layer._gradient_checkpointing_func = partial(activation_checkpoint, use_reentrant=False)
            layer.training = True  # what the layer looks at; its parts stay in eval mode, so nothing random starts
