import math

import pytest
import torch

from ajet_server.train.losses import clipped_surrogate, k3_kl


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.5, 1.0, -1.3, True),
        (1.2, 1.0, -1.2, False),
        (0.5, 1.0, -0.5, False),
        (1.5, -1.0, 1.5, False),
        (0.5, -1.0, 0.8, True),
        (0.9, -2.0, 1.8, False),
        (5.0, 0.0, 0.0, False),
    ],
)
def test_clipping(ratio: float, advantage: float, loss: float, clipped: bool) -> None:
    new = torch.tensor([math.log(ratio) - 1], dtype=torch.float64, requires_grad=True)
    old, one = torch.tensor([-1.0], dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64)
    found, flags = clipped_surrogate(new, old, torch.tensor([advantage]), one, 0.2, 0.3)
    assert found.item() == pytest.approx(0.5 * loss)
    assert flags.tolist() == [clipped]
    (gradient,) = torch.autograd.grad(found, new)
    assert gradient.item() == pytest.approx(0.0 if clipped else -0.5 * advantage * ratio)


def test_k3_is_zero_at_equality_and_positive_elsewhere() -> None:
    old = torch.linspace(-5, -1, 9)
    assert not k3_kl(old, old).any()
    assert (k3_kl(old + 0.1, old) > 0).all()
    assert k3_kl(torch.tensor([-1.5]), torch.tensor([-1.0])).item() == pytest.approx(math.exp(-0.5) - 1 + 0.5)
