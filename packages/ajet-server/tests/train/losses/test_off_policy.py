import math
from typing import Any

import pytest
import torch

from ajet_core.config_algorithm import OffPolicyConfig
from ajet_server.train.losses.off_policy import importance_weights

LOGS = torch.tensor([math.log(3.0), math.log(0.5), math.log(1.5), math.log(0.1)], dtype=torch.float64)
UNIT = torch.tensor([1, 1, 0, 0])


@pytest.mark.parametrize(
    ("config", "weights", "cut", "plain"),
    [
        ({"high": 2.0}, [2, 0.5, 1.5, 0.1], [1, 0, 0, 0], [3, 0.5, 1.5, 0.1]),
        ({"kind": "mask"}, [0, 0.5, 1.5, 0.1], [1, 0, 0, 0], [3, 0.5, 1.5, 0.1]),
        ({"kind": "mask", "low": 0.3, "high": 4}, [3, 0.5, 1.5, 0], [0, 0, 0, 1], [3, 0.5, 1.5, 0.1]),
        ({"level": "sequence", "high": 1.2}, [1.2, 1.2, 0.15, 0.15], [1, 1, 0, 0], [1.5, 1.5, 0.15, 0.15]),
        (
            {"level": "sequence", "kind": "mask", "low": 0.5},
            [1.5, 1.5, 0, 0],
            [0, 0, 1, 1],
            [1.5, 1.5, 0.15, 0.15],
        ),
    ],
)
def test_truncated_and_masked(config: dict[str, Any], weights: list[float], cut: list[int], plain: list[float]) -> None:
    found, log_weight, flags = importance_weights(LOGS.requires_grad_(), UNIT, OffPolicyConfig(**config))
    assert found.tolist() == pytest.approx(weights)
    assert log_weight.exp().tolist() == pytest.approx(plain)
    assert flags.tolist() == [bool(flag) for flag in cut]
    assert not found.requires_grad


def test_what_overflows_is_bounded() -> None:
    far = torch.tensor([800.0, -800.0], dtype=torch.float64)
    assert importance_weights(far, UNIT[:2], OffPolicyConfig())[0].tolist() == [2, 0]
    assert importance_weights(far, UNIT[:2], OffPolicyConfig(kind="mask"))[0].tolist() == [0, 0]
