import math

import pytest
import torch

from ajet_server.train.losses.surrogate import clipped_loss, weighted_loss

CASES = [
    (1.5, 1.0, -1.3, "high"),
    (1.2, 1.0, -1.2, ""),
    (0.5, 1.0, -0.5, ""),
    (1.5, -1.0, 1.5, ""),
    (0.5, -1.0, 0.8, "low"),
    (0.9, -2.0, 1.8, ""),
    (5.0, 0.0, 0.0, ""),
]


@pytest.mark.parametrize(("ratio", "advantage", "loss", "clipped"), CASES)
def test_clipping_of_the_ratio(ratio: float, advantage: float, loss: float, clipped: str) -> None:
    log_ratio = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    found, low, high = clipped_loss(log_ratio, torch.tensor([advantage], dtype=torch.float64), 0.2, 0.3)
    assert found.item() == pytest.approx(loss)
    assert (low.item(), high.item()) == (clipped == "low", clipped == "high")
    (gradient,) = torch.autograd.grad(found, log_ratio)
    assert gradient.item() == pytest.approx(0.0 if clipped else -advantage * ratio)


@pytest.mark.parametrize("ratio", [0.01, 1.0, 50.0])
def test_without_bounds_it_is_the_ratio(ratio: float) -> None:
    log_ratio, advantage = torch.tensor([math.log(ratio)]), torch.tensor([-2.0])
    found, low, high = clipped_loss(log_ratio, advantage, None, None)
    assert found.item() == pytest.approx(2 * ratio)
    assert not (low | high).any()
    one_sided, _, _ = clipped_loss(log_ratio, advantage, 0.2, None)
    assert one_sided.item() == pytest.approx(2 * max(ratio, 0.8))


@pytest.mark.parametrize(
    ("ratio", "low", "high", "weight", "flags"),
    [
        (1.5, None, 0.3, 1.3, (False, True)),
        (0.1, None, 0.3, 0.1, (False, False)),
        (0.1, 0.5, 0.3, 0.5, (True, False)),
        (9.0, 0.5, None, 9.0, (False, False)),
    ],
)
def test_clipping_of_the_weight_keeps_the_gradient(
    ratio: float, low: float | None, high: float | None, weight: float, flags: tuple[bool, bool]
) -> None:
    new = torch.tensor([-1.5], dtype=torch.float64, requires_grad=True)
    log_ratio = new - (new.detach() - math.log(ratio))
    found, below, above = weighted_loss(new, log_ratio, torch.tensor([2.0], dtype=torch.float64), low, high)
    assert found.item() == pytest.approx(-weight * 2 * -1.5)
    assert (below.item(), above.item()) == flags
    (gradient,) = torch.autograd.grad(found, new)
    assert gradient.item() == pytest.approx(-weight * 2)
