"""What a layer asks of its attention beyond the forest's mask."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Scores:
    """How a layer makes weights of products of queries and keys.

    Attributes:
        scaling: factor of the products; D ** -0.5.
        window: a token sees those of its ancestors that are fewer than this many positions above it; None sees all.
        softcap: scores are `softcap * tanh(score / softcap)` (Gemma 2, arXiv 2408.00118, section 2); None leaves them.
    """

    scaling: float
    window: int | None = None
    softcap: float | None = None

    def window_within(self, longest: int) -> int | None:
        """Returns the window if it hides anything in sequences of at most `longest` tokens."""
        return self.window if self.window is not None and self.window < longest else None


def softcapped(
    query_HQD: torch.Tensor,
    key_GKD: torch.Tensor,
    value_GKD: torch.Tensor,
    scaling: float,
    softcap: float,
    mask_QK: torch.Tensor,
) -> torch.Tensor:
    """Attention by its formula, for capped scores, which no fused kernel of torch has. Softmax in float32 at least.

    Args:
        query_HQD: queries.
        key_GKD: keys of G heads, each for H / G heads of queries.
        value_GKD: values.
        scaling: factor of the products.
        softcap: bound of the scores.
        mask_QK: True where a query sees a key; each sees one.

    Returns:
        [H, Q, D].
    """
    heads, rows, size = query_HQD.shape
    groups = key_GKD.shape[0]
    query_GRD = query_HQD.reshape(groups, -1, size)  # those of the heads that share a key head, one below the other
    products_GRK = query_GRD @ key_GKD.transpose(1, 2)
    products_GRK = products_GRK.to(torch.promote_types(products_GRK.dtype, torch.float32))
    scores_HQK = (softcap * torch.tanh(products_GRK * (scaling / softcap))).view(heads, rows, -1)
    probs_HQK = scores_HQK.masked_fill(~mask_QK, -torch.inf).softmax(-1).to(value_GKD.dtype)
    return (probs_HQK.view(groups, heads // groups * rows, -1) @ value_GKD).view(heads, rows, -1)
