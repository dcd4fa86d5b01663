import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ajet_server.train.losses.stats import BINS, RatioStats, no_stats

CPU = torch.device("cpu")


@given(
    st.lists(st.floats(-15, 15) | st.floats(-1e-3, 1e-3), min_size=1, max_size=40), st.floats(0, 1), st.integers(0, 40)
)
def test_quantiles_are_near_and_packs_add_up(log_ratios: list[float], share: float, cut: int) -> None:
    values = torch.tensor(log_ratios, dtype=torch.float64)
    whole = RatioStats.of(values)
    parts = RatioStats.of(values[:cut]) + RatioStats.of(values[cut:])
    assert torch.equal(parts.histogram_B, whole.histogram_B)
    assert (parts.lowest, parts.highest) == (whole.lowest, whole.highest)
    assert parts.mean() == pytest.approx(whole.mean(), rel=1e-5)
    wanted = np.quantile(log_ratios, share, method="inverted_cdf")
    assert np.log(whole.quantile(share)) == pytest.approx(wanted, rel=0.03, abs=3e-6)


def test_no_ratio() -> None:
    none = RatioStats.none(CPU)
    assert (none.mean(), none.quantile(0.5)) == (1.0, 1.0)
    some = RatioStats.of(torch.tensor([0.5, -0.5]))
    assert (none + some).mean() == pytest.approx(some.mean())
    assert (none + some).quantile(0) == pytest.approx(np.exp(-0.5), rel=0.02)


def test_what_is_far_or_no_number_is_counted() -> None:
    stats = RatioStats.of(torch.tensor([torch.nan, torch.inf, -torch.inf, 50.0, 0.0]))
    assert int(stats.histogram_B.sum()) == 5
    assert int(stats.histogram_B[0]) == 1
    assert int(stats.histogram_B[BINS // 2]) == 2
    assert int(stats.histogram_B[-1]) == 2


def test_a_ratio_that_overflows_is_as_far_as_counting_goes() -> None:
    stats = RatioStats.of(torch.tensor([100.0, -torch.inf]))
    assert float(stats.highest) == pytest.approx(np.exp(20), rel=1e-5)
    assert float(stats.lowest) == pytest.approx(np.exp(-20), rel=1e-5)
    assert stats.mean() == pytest.approx(np.exp(20) / 2, rel=1e-5)


def test_no_stats_is_neutral() -> None:
    twice = no_stats(CPU) + no_stats(CPU)
    assert (int(twice.count), float(twice.loss)) == (0, 0.0)
    assert float(twice.ratio.lowest) == np.inf
