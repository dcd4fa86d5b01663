"""Takes weights over into a model that is in use, and compares them with what it holds."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ajet_core.errors import EngineFailedError

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers as wide as a number format: they compare bit by bit, so that NaN equals NaN and 0 is not -0."""


def check_shapes(present: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Requires that every announced weight is one of the model's. Raises `EngineFailedError` that names the first."""
    for name, shape in shapes.items():
        target = present.get(name)
        if target is None:
            raise EngineFailedError(f"weights: the engine's model has no tensor {name!r}; nothing was changed")
        if shape != tuple(target.shape):
            raise EngineFailedError(
                f"weights: {name!r} is {shape}, but the engine's model has {tuple(target.shape)}; nothing was changed"
            )


def copy_into(present: Mapping[str, Tensor], name: str, tensor: object, missing: set[str]) -> None:
    """Copies one announced weight. `missing` are the announced names that have not come yet."""
    if name not in missing or not isinstance(tensor, Tensor) or tensor.shape != present[name].shape:
        raise EngineFailedError(f"weights: {name!r} is not what was announced; the weights are half loaded now")
    present[name].copy_(tensor)
    missing.remove(name)


def holds(target: Tensor | None, tensor: object) -> bool:
    """Returns whether every bit is the same, once the given tensor is in the held one's number format."""
    if target is None or not isinstance(tensor, Tensor) or tensor.shape != target.shape:
        return False
    bits = _BITS[target.element_size()]
    return torch.equal(target.view(bits), tensor.detach().to(target).view(bits))
