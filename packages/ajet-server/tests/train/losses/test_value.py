import pytest
import torch

from ajet_server.train.losses.value import value_loss


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "clipped"),
    [
        (1.5, 1.0, 3.0, (1.2 - 3) ** 2, True),  # moved farther than it may, towards the return
        (1.1, 1.0, 3.0, 1.9**2, False),
        (0.5, 1.0, 3.0, 2.5**2, False),  # moved away: the plain term is larger
        (2.0, 2.0, 2.0, 0.0, False),
    ],
)
def test_against_the_formula(value: float, old: float, target: float, loss: float, clipped: bool) -> None:
    values = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    others = [torch.tensor([x], dtype=torch.float64) for x in (old, target, 0.5)]
    found, flags = value_loss(values, *others, clip=0.2)
    assert found.item() == pytest.approx(0.5 * loss / 2)
    assert flags.item() == clipped
    (gradient,) = torch.autograd.grad(found, values)
    assert gradient.item() == pytest.approx(0 if clipped else 0.5 * (value - target))


def test_gradcheck() -> None:
    torch.manual_seed(0)
    values, old, returns = (torch.randn(9, dtype=torch.float64, requires_grad=True) for _ in range(3))
    weights = torch.rand(9, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda v: value_loss(v, old.detach(), returns.detach(), weights, 0.3)[0], (values,))
