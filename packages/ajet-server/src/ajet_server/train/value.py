"""The critic: a linear head on the hidden states that the policy's log-probabilities come from."""

import torch
from torch import nn
from torch.nn.functional import rms_norm

from ajet_server.train.head import HeadPlan

_EPS = 1e-6
"""Added to the mean square of a hidden state, as language models' own norms do."""


class ValueHead(nn.Module):
    """`V = w . (h / rms(h)) / D + b`, in float32 at least: what the rest of an episode will earn.

    h is the state before a token is sampled, the one that predicts it: no baseline may depend on the token itself.

    Adam's first step moves each coordinate by the learning rate, whatever its gradient (Kingma and Ba 2014, arXiv
    1412.6980, section 2.1). Without the division by D it would move a value by up to D times that, which is the reason
    muP divides what leaves a network by its width (Yang et al. 2022, arXiv 2203.03466). With it, and with
    states of root mean square 1, one step moves a value by one to two learning rates, in models of any width. The head
    begins as 0, so that the first values are 0 and its first step sends no gradient into the model.

    Args:
        width: D, numbers in a hidden state.
        device: where the model is.
    """

    def __init__(self, width: int, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, device=device))
        self.bias = nn.Parameter(torch.zeros((), device=device))

    def forward(self, hidden_TD: torch.Tensor, plan: HeadPlan) -> torch.Tensor:
        """Values [M] of occurrences, in the order the plan was asked in; each of its rows is computed once.

        Args:
            hidden_TD: the pack's hidden states.
            plan: of the same occurrences.
        """
        hidden_RD = hidden_TD.index_select(0, plan.hidden_R)
        hidden_RD = hidden_RD.to(torch.promote_types(hidden_RD.dtype, torch.float32))
        width = self.weight.shape[0]
        values_R = rms_norm(hidden_RD, (width,), eps=_EPS) @ self.weight / width + self.bias
        return values_R.index_select(0, plan.row_M).index_select(0, plan.order_M)
