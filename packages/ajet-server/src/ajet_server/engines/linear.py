"""Makes the linear layers of a model on a CPU use the widest instructions the CPU has.

torch multiplies float32 matrices with MKL, which keeps to AVX2 on processors that are not Intel's. oneDNN, which torch
also carries, uses AVX-512 wherever there is: on an AMD EPYC it takes half the time for 32 rows and for 500. Only the
order of summation differs, so results agree to rounding. The weights are used where they are. Packing them in oneDNN's
own layout would save another fifth, but a second copy of the weights is one that can be stale.
"""

import torch
from torch import Tensor, nn


class OneDnnLinear(nn.Linear):
    """A linear layer computed by oneDNN. For inference only: it has no gradient."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - its name in torch
        """f[..., in] -> f[..., out]."""
        return torch.ops.mkldnn._linear_pointwise(input, self.weight, self.bias, "none", [], "")


def use_onednn(model: nn.Module) -> bool:
    """Lets oneDNN compute the linear layers below `model` if that pays here; returns whether it does.

    The rule looks at the machine and never at a stopwatch, so the same machine always rounds the same way.
    """
    pays = _pays(model)
    for module in model.modules() if pays else ():
        if type(module) is nn.Linear:
            module.__class__ = OneDnnLinear
    return pays


def _pays(model: nn.Module) -> bool:
    # torch makes no promise about this operation, which its compiler uses; without it, its own linear does as well.
    present = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    plain = all(item.device.type == "cpu" and item.dtype == torch.float32 for item in model.parameters())
    return present and plain and torch.backends.cpu.get_cpu_capability() == "AVX512"
