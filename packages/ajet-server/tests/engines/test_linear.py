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
