import torch
from hypothesis import given
from hypothesis import strategies as st

from ajet_server.train.losses.ratio import sequence_ratio, unit_sum


@given(st.lists(st.tuples(st.floats(-5, 5), st.sampled_from([4, -2, 900])), max_size=12))
def test_sums_and_means_of_units(rows: list[tuple[float, int]]) -> None:
    values = torch.tensor([value for value, _ in rows], dtype=torch.float64)
    unit = torch.tensor([unit for _, unit in rows], dtype=torch.int64)
    sums = [sum(value for value, other in rows if other == mine) for _, mine in rows]
    sizes = [sum(other == mine for _, other in rows) for _, mine in rows]
    wanted = torch.tensor(sums, dtype=torch.float64)
    torch.testing.assert_close(unit_sum(values, unit), wanted)
    torch.testing.assert_close(sequence_ratio(values, unit), wanted / torch.tensor(sizes, dtype=torch.float64))


def test_gradients() -> None:
    values = torch.tensor([1.0, -2, 3, 0.5], dtype=torch.float64, requires_grad=True)
    unit = torch.tensor([5, 1, 5, 5])
    assert torch.autograd.gradcheck(lambda x: unit_sum(x, unit).square(), (values,))


def test_a_sequences_ratio_has_the_gradient_of_its_own_token() -> None:
    """So a token is credited with its own advantage; with equal ones the gradient is GSPO's own, through the mean."""
    values = torch.tensor([1.0, -2, 3, 0.5], dtype=torch.float64, requires_grad=True)
    advantage, equal = torch.tensor([1.0, 7, -2, 0], dtype=torch.float64), torch.tensor([2.0, 7, 2, 2])
    ratio = sequence_ratio(values, torch.tensor([5, 1, 5, 5])).exp()
    own = torch.stack([values[[0, 2, 3]].mean(), values[1]]).exp()[[0, 1, 0, 0]]
    torch.testing.assert_close(ratio, own)
    for wanted, credit in ((own.detach() * advantage, advantage), (_gradient((own * equal).sum(), values), equal)):
        torch.testing.assert_close(_gradient((ratio * credit).sum(), values), wanted)


def _gradient(loss: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(loss, values, retain_graph=True)[0]
