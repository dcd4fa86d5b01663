import math
from typing import Any

import pytest
import torch

from ajet_server.train.losses.kl import kl_estimate

MODEL = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
REFERENCE = torch.tensor([0.4, 0.3, 0.1, 0.2], dtype=torch.float64)
KL = float((MODEL * (MODEL / REFERENCE).log()).sum())


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_have_no_bias(estimator: Any) -> None:
    estimates = kl_estimate(MODEL.log(), REFERENCE.log(), estimator)
    assert float((MODEL * estimates).sum()) == pytest.approx(KL)


def test_values() -> None:
    model, reference = torch.tensor([-1.0]), torch.tensor([-1.5])
    assert kl_estimate(model, reference, "k1").item() == pytest.approx(0.5)
    assert kl_estimate(model, reference, "k2").item() == pytest.approx(0.125)
    assert kl_estimate(model, reference, "k3").item() == pytest.approx(math.exp(-0.5) - 1 + 0.5)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_zero_at_equality_and_k2_and_k3_never_negative(estimator: Any) -> None:
    model = torch.linspace(-5, -1, 9)
    assert not kl_estimate(model, model, estimator).any()
    if estimator != "k1":
        assert (kl_estimate(model, model + 0.1, estimator) > 0).all()
        assert (kl_estimate(model, model - 0.1, estimator) > 0).all()


def test_as_a_loss_k1_has_no_expected_gradient_and_k2_has_that_of_the_kl() -> None:
    """Why the job refuses k1 in the loss."""
    logits = MODEL.log().requires_grad_()
    true_kl = (logits.softmax(0) * (logits.log_softmax(0) - REFERENCE.log())).sum()
    (wanted,) = torch.autograd.grad(true_kl, logits)
    found = {}
    for estimator in ("k1", "k2"):
        expected = (MODEL * kl_estimate(logits.log_softmax(0), REFERENCE.log(), estimator)).sum()
        (found[estimator],) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(found["k1"], torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(found["k2"], wanted, rtol=1e-12, atol=1e-12)
