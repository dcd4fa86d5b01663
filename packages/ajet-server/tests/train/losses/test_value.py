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


def test_without_a_bound_it_is_the_plain_square() -> None:
    values = torch.tensor([5.0, -1.0], dtype=torch.float64, requires_grad=True)
    old, returns, weight = (torch.tensor(x, dtype=torch.float64) for x in ([0.0, 0.0], [1.0, 1.0], [0.5, 0.25]))
    found, flags = value_loss(values, old, returns, weight, clip=None)
    assert found.item() == (0.5 * 16 + 0.25 * 4) / 2
    assert flags.tolist() == [False, False]
    assert torch.autograd.grad(found, values)[0].tolist() == [0.5 * 4, 0.25 * -2]


@pytest.mark.parametrize("clip", [0.3, None])
def test_gradcheck(clip: float | None) -> None:
    torch.manual_seed(0)
    values, old, returns = (torch.randn(9, dtype=torch.float64, requires_grad=True) for _ in range(3))
    weights = torch.rand(9, dtype=torch.float64)
    constants = old.detach(), returns.detach(), weights
    assert torch.autograd.gradcheck(lambda v: value_loss(v, *constants, clip)[0], (values,))
