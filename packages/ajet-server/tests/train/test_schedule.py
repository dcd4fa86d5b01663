"""The learning rate: warm-up, decays, and where it goes on after a restart."""

import math
from typing import Any

import pytest
import torch

from ajet_core.config import OptimizerConfig
from ajet_server.train.schedule import rate_factor, set_rate


def factors(config: OptimizerConfig, steps: int) -> list[float]:
    return [rate_factor(step, config) for step in range(steps)]


def test_without_a_schedule_the_rate_is_constant() -> None:
    assert factors(OptimizerConfig(), 3) == [1, 1, 1]


def test_the_warm_up_rises_to_its_highest_without_a_step_of_zero() -> None:
    assert factors(OptimizerConfig(warmup_steps=4), 6) == [0.25, 0.5, 0.75, 1, 1, 1]


def test_a_linear_fall_ends_at_its_floor_and_stays() -> None:
    config = OptimizerConfig(warmup_steps=1, schedule="linear", decay_steps=4, final_rate_fraction=0.2)
    assert factors(config, 7) == pytest.approx([1, 1, 0.8, 0.6, 0.4, 0.2, 0.2])


def test_a_cosine_falls_by_half_in_the_middle() -> None:
    found = factors(OptimizerConfig(schedule="cosine", decay_steps=4), 6)
    assert found == pytest.approx([(1 + math.cos(math.pi * min(step, 4) / 4)) / 2 for step in range(6)])
    assert found[2] == pytest.approx(0.5)
    assert found[-1] == 0


def test_the_steps_that_count_are_the_optimizers_own() -> None:
    weight, head = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    groups: list[dict[str, Any]] = [{"params": [weight], "peak": 0.1}, {"params": [head], "peak": 4.0}]
    optimizer = torch.optim.AdamW(groups)
    config = OptimizerConfig(warmup_steps=4)
    rates: list[float] = []
    for _ in range(2):
        rates.append(set_rate(optimizer, config))
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([rates[-1], 40 * rates[-1]])
        weight.grad = torch.ones(1)
        optimizer.step()
    assert rates == pytest.approx([0.025, 0.05])
    again = torch.optim.AdamW(groups)
    again.load_state_dict(optimizer.state_dict())
    assert set_rate(again, config) == again.param_groups[0]["lr"] == pytest.approx(0.075)
