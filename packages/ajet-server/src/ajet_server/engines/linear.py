"""Makes the linear layers of a model on a CPU use the widest instructions the CPU has.

torch multiplies float32 matrices with MKL, which keeps to AVX2 on processors that are not Intel's. oneDNN, which torch
also carries, uses AVX-512 wherever there is: on an AMD EPYC it takes half the time for 32 rows and for 500. Only the
order of summation differs, so results agree to rounding. Weights stay where they are.
"""

from functools import partial

import torch
from torch import Tensor, nn


def use_onednn(model: nn.Module) -> bool:
    """Lets oneDNN compute the linear layers if that pays here; returns whether it does. For inference only.

    The rule looks at the machine and never at a stopwatch, so the same machine always rounds the same way.
    """
    if not _pays(model):
        return False
    for module in model.modules():
        if type(module) is nn.Linear:
            module.forward = partial(onednn_linear, module)
    return True


def onednn_linear(module: nn.Linear, inputs: Tensor) -> Tensor:
    """Computes `module(inputs)`; f[..., in] -> f[..., out]."""
    return torch.ops.mkldnn._linear_pointwise(inputs, module.weight, module.bias, "none", [], "")


def _pays(model: nn.Module) -> bool:
    # torch makes no promise about this operation, which its compiler uses; without it, its own linear does as well.
    present = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    on_cpu = all(item.device.type == "cpu" and item.dtype == torch.float32 for item in model.parameters())
    return present and on_cpu and torch.backends.cpu.get_cpu_capability() == "AVX512"
