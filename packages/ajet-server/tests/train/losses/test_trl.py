"""TRL's own `_compute_loss` on the same numbers, without its trainer: only its attributes are made up."""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ajet_core.config import AlgorithmConfig
from ajet_merge import Call
from ajet_server.samples.weights import with_loss_weights
from ajet_server.train.losses.policy import LossInputs, policy_loss

ROWS, LENGTH = 6, 9


class _Accelerator:
    """One process."""

    num_processes = 1
    sync_gradients = True

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def reduce(self, tensor: torch.Tensor, reduction: str) -> torch.Tensor:
        return tensor


def trl_loss(logps_BT: torch.Tensor, inputs: dict[str, Any], **settings: Any) -> torch.Tensor:
    """TRL's loss of padded rows."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    trainer: Any = object.__new__(GRPOTrainer)
    settings = {"loss_type": "grpo", "importance_sampling_level": "token", "beta": 0.0, "entropy_coef": 0.0} | settings
    attributes = {
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "aux_loss_enabled": False,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "use_vllm": "importance_sampling_ratio" in inputs,
        "vllm_importance_sampling_correction": True,
        "use_adaptive_entropy": False,
        "_entropy_bonus_enabled": settings["entropy_coef"] > 0,
        "current_gradient_accumulation_steps": 1,
        "max_completion_length": LENGTH,
        "model": SimpleNamespace(training=True),
        "accelerator": _Accelerator(),
        "args": SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        "_metrics": {"train": defaultdict(list)},
        "_get_per_token_logps_and_entropies": lambda *_, **__: (logps_BT, inputs["entropies"], None),
    }
    trainer.__dict__.update(attributes | settings)
    return trainer._compute_loss(None, inputs)


def padded(seed: int = 0) -> tuple[torch.Tensor, dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)

    def normal(scale: float, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator) * scale

    logps_BT = normal(0.5, ROWS, LENGTH) - 2
    lengths = torch.tensor([9, 1, 4, 7, 2, 5])
    mask_BT = (torch.arange(LENGTH) < lengths[:, None]).double()
    inputs = {
        "prompt_ids": torch.zeros(ROWS, 2, dtype=torch.int64),
        "prompt_mask": torch.ones(ROWS, 2, dtype=torch.int64),
        "completion_ids": torch.zeros(ROWS, LENGTH, dtype=torch.int64),
        "completion_mask": mask_BT,
        "advantages": normal(1.0, ROWS),
        "old_per_token_logps": logps_BT + normal(0.25, ROWS, LENGTH),
        "ref_per_token_logps": logps_BT + normal(0.3, ROWS, LENGTH),
        "entropies": normal(0.1, ROWS, LENGTH) + 1.5,
        "num_items_in_batch": mask_BT.sum(),
    }
    return logps_BT.requires_grad_(), inputs


def our_loss(logps_BT: torch.Tensor, inputs: dict[str, Any], algorithm: AlgorithmConfig) -> torch.Tensor:
    """The same rows as occurrences, each row an episode of one call."""
    keep = inputs["completion_mask"].bool()
    rows_BT = torch.arange(ROWS)[:, None].expand(ROWS, LENGTH)
    sizes = keep.sum(1).tolist()
    calls = [Call([0], [0] * n, [0.0] * n, episode_id=str(row), call_id=str(row)) for row, n in enumerate(sizes)]
    weights = [torch.from_numpy(call.weight.copy()) for call in with_loss_weights(calls, algorithm)]
    found, _ = policy_loss(
        LossInputs(
            logprobs_M=logps_BT[keep],
            rollout_M=inputs.get("sampling_per_token_logps", inputs["old_per_token_logps"])[keep],
            advantage_M=inputs["advantages"][rows_BT][keep],
            weight_M=torch.cat(weights).double(),
            unit_M=rows_BT[keep],
            exact_M=torch.ones_like(keep)[keep],
            entropy_M=inputs["entropies"][keep],
            old_M=inputs["old_per_token_logps"][keep],
            reference_M=inputs["ref_per_token_logps"][keep] if algorithm.kl else None,
        ),
        algorithm,
    )
    return found


CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"name": "grpo"}, {}),
    ({"name": "grpo", "clip_low": 0.1, "clip_high": 0.3}, {"epsilon_low": 0.1, "epsilon_high": 0.3}),
    ({"name": "grpo", "kl": {"coef": 0.3}}, {"beta": 0.3}),
    ({"name": "grpo", "loss_weight": "token_mean"}, {"loss_type": "bnpo"}),
    ({"name": "dr_grpo", "loss_length": LENGTH}, {"loss_type": "dr_grpo"}),
    ({"name": "dapo"}, {"loss_type": "dapo", "epsilon_high": 0.28}),
    (
        {"name": "gspo", "clip_low": 0.05, "clip_high": 0.06},
        {"importance_sampling_level": "sequence", "epsilon_low": 0.05, "epsilon_high": 0.06},
    ),
    ({"name": "cispo", "clip_high": 0.2}, {"loss_type": "cispo", "epsilon_high": 1.2}),
    (
        {"name": "grpo", "loss_weight": "token_mean", "entropy_coef": 0.2},
        {"loss_type": "bnpo", "entropy_coef": 0.2},
    ),
]


@pytest.mark.parametrize(("ours", "theirs"), CASES, ids=lambda parts: ", ".join(map(str, parts.values())))
def test_loss_and_gradient_equal_those_of_trl(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    logps_BT, inputs = padded()
    found = our_loss(logps_BT, inputs, AlgorithmConfig(**ours))
    wanted = trl_loss(logps_BT, inputs, **theirs)
    assert_equal(found, wanted, logps_BT)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("kind", ["truncate", "mask"])
def test_importance_weights_equal_those_of_trl(level: str, kind: str) -> None:
    """TRL makes them while it scores; the formula is that of its `_generate_and_score_completions`."""
    logps_BT, inputs = padded()
    sampled_BT = inputs["old_per_token_logps"] + torch.randn(ROWS, LENGTH, dtype=torch.float64) * 0.3
    log_weight = (inputs["old_per_token_logps"] - sampled_BT) * inputs["completion_mask"]
    weight = (log_weight.sum(-1, keepdim=True) if level == "sequence" else log_weight).exp()
    inputs["importance_sampling_ratio"] = (
        weight.clamp(max=1.1) if kind == "truncate" else weight.masked_fill(weight > 1.1, 0.0)
    )
    inputs["sampling_per_token_logps"] = sampled_BT
    algorithm = AlgorithmConfig.model_validate({"off_policy": {"kind": kind, "level": level, "high": 1.1}})
    wanted = trl_loss(logps_BT, inputs)
    assert_equal(our_loss(logps_BT, inputs, algorithm), wanted, logps_BT)


def assert_equal(found: torch.Tensor, wanted: torch.Tensor, logps_BT: torch.Tensor) -> None:
    """To what a weight in float32 allows."""
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7)
    (ours,), (theirs,) = torch.autograd.grad(found, logps_BT), torch.autograd.grad(wanted, logps_BT)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)
    assert theirs.any()
