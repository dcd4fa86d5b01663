"""oneDNN computes what torch's own linear layers do, and follows their weights."""

import pytest
import torch
from torch import nn

from ajet_server.engines.linear import OneDnnLinear, use_onednn


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 7, 65])
def test_results_agree_to_rounding(rows: int, bias: bool) -> None:
    plain, fast, inputs = nn.Linear(48, 96, bias=bias), OneDnnLinear(48, 96, bias=bias), torch.randn(1, rows, 48)
    fast.load_state_dict(plain.state_dict())
    with torch.inference_mode():
        torch.testing.assert_close(fast(inputs), plain(inputs), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("capability", ["AVX512", "AVX2"])
def test_changed_weights_are_used_at_once(capability: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    model, inputs = nn.Sequential(nn.Linear(48, 96)), torch.randn(3, 48)
    used = use_onednn(model)
    assert used == (capability == "AVX512" and torch.backends.mkldnn.is_available())
    with torch.inference_mode():
        before = model(inputs)
        model[0].weight.mul_(2)
        model[0].bias.mul_(2)
        torch.testing.assert_close(model(inputs), 2 * before)


def test_other_number_formats_are_left_alone() -> None:
    model = nn.Linear(4, 4).double()
    assert not use_onednn(model)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
@pytest.mark.parametrize("fault", ["raises", "takes other arguments", "is wrong"])
def test_an_operation_that_does_not_work_is_not_used(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(inputs: torch.Tensor, weight: torch.Tensor, *rest: object) -> torch.Tensor:
        if fault == "raises":
            raise NotImplementedError("no such kernel here")
        return torch.zeros(len(inputs), len(weight))

    def other() -> None: ...

    operation = other if fault == "takes other arguments" else broken
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", operation, raising=False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    model, inputs = nn.Sequential(nn.Linear(48, 96), nn.Linear(96, 3, bias=False)), torch.randn(3, 48)
    expected = model(inputs)
    assert not use_onednn(model)
    assert "oneDNN's linear layer is not used" in caplog.text
    torch.testing.assert_close(model(inputs), expected)
