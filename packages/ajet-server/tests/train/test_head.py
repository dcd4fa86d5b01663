import numpy as np
import pytest
import torch

from ajet_server.train.head import HeadPlan, head_logprobs

CPU = torch.device("cpu")


SOFTCAP = 2.0
"""So low that the slope of the tanh matters."""


@pytest.mark.parametrize("trained", [True, False], ids=["trained", "frozen"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("unit", [True, False], ids=["temperature 1", "temperatures"])
@pytest.mark.parametrize("chunk", [1, 4, 100])
@pytest.mark.parametrize("softcap", [None, SOFTCAP], ids=["no softcap", "softcap"])
@pytest.mark.parametrize("entropy_gradient", [False, True], ids=["entropy constant", "entropy trained"])
def test_equals_log_softmax_of_all_logits(
    trained: bool, bias: bool, unit: bool, chunk: int, softcap: float | None, entropy_gradient: bool
) -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    predictor, target = rng.integers(0, 9, 20).astype(np.int32), rng.integers(0, 11, 20).astype(np.int32)
    temperature = np.ones(20, np.float32) if unit else rng.choice([0.5, 1, 3], 20).astype(np.float32)
    hidden = torch.randn(9, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 6, dtype=torch.float64, requires_grad=trained)
    offset = torch.randn(11, dtype=torch.float64, requires_grad=trained) if bias else None
    plan = HeadPlan.of(predictor, target, temperature, chunk, CPU)
    assert len(plan.hidden_R) == len(set(zip(predictor, temperature, strict=True)))
    found, entropy = head_logprobs(hidden, weight, offset, plan, softcap, entropy_gradient)
    logits = torch.nn.functional.linear(hidden, weight, offset)[torch.from_numpy(predictor).long()]
    if softcap is not None:
        logits = softcap * (logits / softcap).tanh()
    table = (logits / torch.from_numpy(temperature)[:, None]).log_softmax(1)
    wanted = table[torch.arange(20), torch.from_numpy(target).long()]
    wanted_entropy = -(table.exp() * table).sum(1)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(entropy, wanted_entropy, rtol=0, atol=1e-12, check_stride=False)
    assert entropy.requires_grad == entropy_gradient
    inputs = [hidden, *([weight] if trained else []), *([offset] if trained and offset is not None else [])]
    upstream, of_entropy = torch.randn_like(wanted), torch.randn_like(wanted)
    ours, theirs = (found * upstream).sum(), (wanted * upstream).sum()
    if entropy_gradient:
        ours, theirs = ours + (entropy * of_entropy).sum(), theirs + (wanted_entropy * of_entropy).sum()
    for one, other in zip(*(torch.autograd.grad(x, inputs) for x in (ours, theirs)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("trained", [True, False], ids=["trained", "frozen"])
def test_the_entropy_alone_has_a_gradient(trained: bool) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 6, dtype=torch.float64, requires_grad=trained)
    ids = np.array([0, 1, 1], np.int32)
    plan = HeadPlan.of(ids, ids, np.array([1, 0.5, 2], np.float32), 2, CPU)
    assert torch.autograd.gradcheck(
        lambda h: head_logprobs(h, weight, None, plan, SOFTCAP, entropy_gradient=True)[1], (hidden,)
    )


def test_bfloat16_is_summed_in_float32() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(3, 64).bfloat16().requires_grad_()
    weight = torch.randn(50, 64).bfloat16()
    ids = np.array([0, 1, 2], np.int32)
    found, _ = head_logprobs(hidden, weight, None, HeadPlan.of(ids, ids, np.ones(3, np.float32), 8, CPU))
    assert found.dtype == torch.float32
    wanted = (hidden @ weight.T).float().log_softmax(1)[[0, 1, 2], [0, 1, 2]]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    ours, theirs = (torch.autograd.grad(x.sum(), hidden)[0].float() for x in (found, wanted))
    torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02)
