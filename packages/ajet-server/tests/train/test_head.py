import numpy as np
import pytest
import torch

from ajet_server.train.head import HeadPlan, head_logprobs

CPU = torch.device("cpu")


@pytest.mark.parametrize("trained", [True, False], ids=["trained", "frozen"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("unit", [True, False], ids=["temperature 1", "temperatures"])
@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_equals_log_softmax_of_all_logits(trained: bool, bias: bool, unit: bool, chunk: int) -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    predictor, target = rng.integers(0, 9, 20).astype(np.int32), rng.integers(0, 11, 20).astype(np.int32)
    temperature = np.ones(20, np.float32) if unit else rng.choice([0.5, 1, 3], 20).astype(np.float32)
    hidden = torch.randn(9, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 6, dtype=torch.float64, requires_grad=trained)
    offset = torch.randn(11, dtype=torch.float64, requires_grad=trained) if bias else None
    plan = HeadPlan.of(predictor, target, temperature, chunk, CPU)
    assert len(plan.hidden_R) == len(set(zip(predictor, temperature, strict=True)))
    found, entropy = head_logprobs(hidden, weight, offset, plan)
    logits = torch.nn.functional.linear(hidden, weight, offset)[torch.from_numpy(predictor).long()]
    table = (logits / torch.from_numpy(temperature)[:, None]).log_softmax(1)
    wanted = table[torch.arange(20), torch.from_numpy(target).long()]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(entropy, -(table.exp() * table).sum(1).detach(), rtol=0, atol=1e-12)
    assert not entropy.requires_grad
    inputs = [hidden, *([weight] if trained else []), *([offset] if trained and offset is not None else [])]
    upstream = torch.randn_like(wanted)
    for ours, theirs in zip(*(torch.autograd.grad(x, inputs, upstream) for x in (found, wanted)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


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
