import torch
from hypothesis import given
from hypothesis import strategies as st

from ajet_server.train.losses.ratio import unit_mean, unit_sum


@given(st.lists(st.tuples(st.floats(-5, 5), st.sampled_from([4, -2, 900])), max_size=12))
def test_sums_and_means_of_units(rows: list[tuple[float, int]]) -> None:
    values = torch.tensor([value for value, _ in rows], dtype=torch.float64)
    unit = torch.tensor([unit for _, unit in rows], dtype=torch.int64)
    sums = [sum(value for value, other in rows if other == mine) for _, mine in rows]
    sizes = [sum(other == mine for _, other in rows) for _, mine in rows]
    wanted = torch.tensor(sums, dtype=torch.float64)
    torch.testing.assert_close(unit_sum(values, unit), wanted)
    torch.testing.assert_close(unit_mean(values, unit), wanted / torch.tensor(sizes, dtype=torch.float64))


def test_gradients() -> None:
    values = torch.tensor([1.0, -2, 3, 0.5], dtype=torch.float64, requires_grad=True)
    unit = torch.tensor([5, 1, 5, 5])
    assert torch.autograd.gradcheck(lambda x: unit_mean(x, unit).exp(), (values,))
    assert torch.autograd.gradcheck(lambda x: unit_sum(x, unit).square(), (values,))
