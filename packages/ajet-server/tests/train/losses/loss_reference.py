"""The losses once more, sequence by sequence and token by token, in plain arithmetic on float64 scalars."""

from typing import Any

import torch
from torch import Tensor

from ajet_core.config import AlgorithmConfig
from ajet_server.train.losses.policy import LossInputs

ALGORITHMS: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in ("grpo", "dr_grpo", "rloo", "reinforce_pp", "dapo", "gspo", "cispo")},
    "plain": {"clipping": "none"},
    "cispo with a lower bound": {"name": "cispo", "clip_low": 0.3, "clip_high": 0.2},
    "sequence weight": {"clipping": "weight", "ratio_level": "sequence", "clip_high": 0.05},
    "gspo that clips": {"name": "gspo", "clip_low": 0.05, "clip_high": 0.1},
    "a critic's advantages": {"name": "ppo"},
    "a critic's with gspo's ratio": {"name": "ppo", "ratio_level": "sequence", "clip_low": 0.05, "clip_high": 0.1},
    "k2": {"kl": {"estimator": "k2", "coef": 0.3}},
    "k3": {"name": "gspo", "kl": {"estimator": "k3", "coef": 0.3}},
    "kl in the reward": {"kl": {"estimator": "k1", "place": "reward"}},
    "entropy": {"entropy_coef": 0.2},
    "recomputed": {"old_logprobs": "recomputed"},
    "truncated tokens": {"off_policy": {"high": 1.2}},
    "masked tokens": {"off_policy": {"kind": "mask", "low": 0.9, "high": 1.3}},
    "truncated sequences": {"name": "cispo", "off_policy": {"level": "sequence", "high": 1.1}},
    "masked sequences": {"name": "dapo", "off_policy": {"level": "sequence", "kind": "mask", "low": 0.8}},
    "all of it": {
        "name": "gspo",
        "clip_high": 0.1,
        "entropy_coef": 0.1,
        "kl": {"coef": 0.2},
        "off_policy": {"kind": "mask", "high": 1.5},
    },
}


def random_inputs(
    algorithm: AlgorithmConfig, seed: int = 0, lengths: tuple[int, ...] = (3, 1, 6, 4), later: bool = False
) -> LossInputs:
    """Calls of these lengths, the second without an exact context; leaves that want a gradient.

    Log-probabilities before the update are there when `later`, as in a second pass over a batch.
    """
    generator = torch.Generator().manual_seed(seed)
    count = sum(lengths)

    def normal(scale: float, mean: float = 0.0) -> Tensor:
        return torch.randn(count, dtype=torch.float64, generator=generator) * scale + mean

    logprobs = normal(0.5, -2)
    reference = logprobs + normal(0.3)
    rollout, old = logprobs + normal(0.25), logprobs + normal(0.2)
    unit = torch.repeat_interleave(torch.arange(len(lengths)) * 7 + 3, torch.tensor(lengths))
    return LossInputs(
        logprobs_M=logprobs.requires_grad_(),
        rollout_M=rollout,
        advantage_M=normal(1.0),
        weight_M=torch.rand(count, dtype=torch.float64, generator=generator) + 0.1,
        unit_M=unit,
        exact_M=unit != 10,
        entropy_M=normal(0.1, 1.5).requires_grad_(bool(algorithm.entropy_coef)),
        old_M=old if later else None,
        reference_M=None if algorithm.kl is None else reference,
    )


def take(inputs: LossInputs, index_M: Tensor) -> LossInputs:
    """Some occurrences, in this order."""
    taken = {name: value if value is None else value[index_M] for name, value in vars(inputs).items()}
    return LossInputs(**taken)


def reference_loss(inputs: LossInputs, algorithm: AlgorithmConfig) -> Tensor:
    """The loss."""
    total = torch.zeros((), dtype=torch.float64)
    for unit in sorted(set(inputs.unit_M.tolist())):
        tokens = [m for m in range(len(inputs.unit_M)) if int(inputs.unit_M[m]) == unit]
        total = total + _sequence(inputs, algorithm, tokens)
    return total


def _sequence(x: LossInputs, algorithm: AlgorithmConfig, tokens: list[int]) -> Tensor:
    before = {m: x.logprobs_M[m].detach() if x.old_M is None else x.old_M[m] for m in tokens}
    engine = {m: x.rollout_M[m] if x.exact_M[m] else before[m] for m in tokens}
    old = before if algorithm.old_logprobs == "recomputed" else engine
    ratio = {m: x.logprobs_M[m].exp() / old[m].exp() for m in tokens}
    if algorithm.ratio_level == "sequence":
        whole = (torch.stack([ratio[m] for m in tokens]).prod() ** (1 / len(tokens))).detach()
        own = {m: x.logprobs_M[m].exp() for m in tokens}
        ratio = {m: whole * own[m] / own[m].detach() for m in tokens}
    total = torch.zeros((), dtype=torch.float64)
    for m in tokens:
        term = _policy(x, m, ratio[m], algorithm) * _importance(m, tokens, before, engine, algorithm)
        if algorithm.kl is not None and algorithm.kl.place == "loss":
            assert x.reference_M is not None
            r = x.reference_M[m].exp() / x.logprobs_M[m].exp()
            term = term + algorithm.kl.coef * (r.log() ** 2 / 2 if algorithm.kl.estimator == "k2" else r - 1 - r.log())
        total = total + x.weight_M[m] * (term - algorithm.entropy_coef * x.entropy_M[m])
    return total


def _policy(x: LossInputs, m: int, ratio: Tensor, algorithm: AlgorithmConfig) -> Tensor:
    advantage, value = float(x.advantage_M[m]), ratio.item()
    low = 0.0 if algorithm.clip_low is None else 1 - algorithm.clip_low
    high = float("inf") if algorithm.clip_high is None else 1 + algorithm.clip_high
    if algorithm.clipping == "weight":
        return -min(max(value, low), high) * advantage * x.logprobs_M[m]
    bounded = min(max(value, low), high)
    if value * advantage <= bounded * advantage:
        return -ratio * advantage
    return ratio.new_tensor(-bounded * advantage)  # the smaller term is the clipped one, a constant


def _importance(
    m: int, tokens: list[int], before: dict[int, Tensor], engine: dict[int, Tensor], algorithm: AlgorithmConfig
) -> float:
    config = algorithm.off_policy
    if config is None:
        return 1.0
    weight = 1.0
    for other in tokens if config.level == "sequence" else [m]:
        weight *= float(before[other].exp() / engine[other].exp())
    if config.kind == "truncate":
        return min(weight, config.high)
    return weight if (config.low or 0.0) <= weight <= config.high else 0.0
