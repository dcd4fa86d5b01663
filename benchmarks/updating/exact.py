"""How far the forest's gradient is from that of every call alone."""

from collections.abc import Callable
from math import sqrt
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from .cases import Episodes, Sizes, make_episodes
from .methods import called_alone, forest_packs
from .model import make_model
from .passes import ATTENTION, run_packs

Gradients = dict[str, torch.Tensor]


class Errors(NamedTuple):
    """Relative errors of a gradient, in Frobenius norms.

    Attributes:
        whole: of all parameters together.
        worst: the largest of a single parameter, relative to that parameter's gradient.
    """

    whole: float
    worst: float


def gradients(model: PreTrainedModel, run: Callable[[PreTrainedModel], object]) -> Gradients:
    """The gradient that `run` leaves in the parameters."""
    model.zero_grad(set_to_none=True)
    run(model)
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def relative_errors(found: Gradients, wanted: Gradients) -> Errors:
    """Compares two gradients of the same parameters."""
    if found.keys() != wanted.keys():
        raise AssertionError(f"gradients of different parameters: {sorted(found.keys() ^ wanted.keys())}")
    pairs = [(float((found[name] - wanted[name]).norm()), float(wanted[name].norm())) for name in wanted]
    whole = sqrt(sum(off**2 for off, _ in pairs) / sum(size**2 for _, size in pairs))
    return Errors(whole, max(off / size for off, size in pairs))


def forest_errors(case: str, sizes: Sizes, seed: int) -> dict[str, float]:
    """The forest against one backward pass for each call by plain transformers, in float64 and float32."""
    episodes = make_episodes(case, sizes, seed)
    result: dict[str, float] = {}
    for name, double in (("fp64", True), ("fp32", False)):
        errors = _errors(episodes, double)
        result |= {name: errors.whole, f"{name}_worst_parameter": errors.worst}
    return result


def _errors(episodes: Episodes, double: bool) -> Errors:
    packs = forest_packs(episodes)
    found = gradients(make_model(ATTENTION, double), lambda model: run_packs(model, packs))
    wanted = gradients(make_model("sdpa", double), lambda model: called_alone(model, episodes))
    return relative_errors(found, wanted)
