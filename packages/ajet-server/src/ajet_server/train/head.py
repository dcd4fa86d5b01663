"""Log-probabilities of chosen tokens from hidden states, without ever holding all the logits.

Rows are the different (hidden state, temperature) pairs; several occurrences may share one. Logits exist for one chunk
of rows at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class HeadPlan:
    """Which log-probabilities are wanted: M occurrences over R rows, in chunks of rows.

    Attributes:
        hidden_R: i64[R], the token whose hidden state a row is.
        temperature_R: f32[R].
        row_M: i64[M], the row of each occurrence; ascending.
        target_M: i64[M], the token id wanted, in the same order.
        order_M: i64[M], where each occurrence in the caller's order is in this one.
        chunks: (first row, end row, first occurrence, end occurrence) of each chunk.
        unit_temperature: True when every temperature is 1.
    """

    hidden_R: torch.Tensor
    temperature_R: torch.Tensor
    row_M: torch.Tensor
    target_M: torch.Tensor
    order_M: torch.Tensor
    chunks: list[tuple[int, int, int, int]]
    unit_temperature: bool

    @classmethod
    def of(
        cls,
        predictor_M: npt.NDArray[np.int32],
        target_M: npt.NDArray[np.int32],
        temperature_M: npt.NDArray[np.float32],
        chunk: int,
        device: torch.device,
    ) -> "HeadPlan":
        """Plans the occurrences: equal (predictor, temperature) pairs are computed once."""
        bits_M = np.ascontiguousarray(temperature_M, np.float32).view(np.int32)  # positive floats order like their bits
        keys_R, row_M = np.unique((predictor_M.astype(np.int64) << 32) | bits_M, return_inverse=True)
        sorted_M = np.argsort(row_M, kind="stable")
        order_M = np.empty_like(sorted_M)
        order_M[sorted_M] = np.arange(sorted_M.size)
        row_M = row_M[sorted_M]
        temperature_R = (keys_R & 0xFFFFFFFF).astype(np.int32).view(np.float32)

        def put(array: npt.NDArray[Any], dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.from_numpy(array.copy()).to(device, dtype)

        return cls(
            hidden_R=put(keys_R >> 32),
            temperature_R=put(temperature_R, torch.float32),
            row_M=put(row_M),
            target_M=put(target_M[sorted_M]),
            order_M=put(order_M),
            chunks=_chunks(row_M, keys_R.size, chunk),
            unit_temperature=bool((temperature_R == 1).all()),
        )

    def temperature(self, first: int, end: int) -> torch.Tensor | None:
        """The temperatures of rows `first` to `end`; None when all are 1."""
        return None if self.unit_temperature else self.temperature_R[first:end]


def _chunks(row_M: npt.NDArray[np.int64], rows: int, chunk: int) -> list[tuple[int, int, int, int]]:
    bounds = [*range(0, rows, chunk), rows]
    marks = np.searchsorted(row_M, bounds).tolist()
    return [(bounds[i], bounds[i + 1], marks[i], marks[i + 1]) for i in range(len(bounds) - 1)]


@dataclass(frozen=True)
class Head:
    """The output layer: `logits = softcap * tanh((hidden W^T + bias) / softcap)`, or without the tanh.

    Attributes:
        weight_VD: the layer's matrix.
        bias_V: its bias, if it has one.
        softcap: bound of the logits' magnitude (Gemma 2, arXiv 2408.00118, section 2), applied before the temperature;
            None is no bound.
    """

    weight_VD: torch.Tensor
    bias_V: torch.Tensor | None = None
    softcap: float | None = None

    @property
    def trained(self) -> bool:
        """Whether its parameters want a gradient."""
        return self.weight_VD.requires_grad or (self.bias_V is not None and self.bias_V.requires_grad)

    def logits(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        """Logits [R, V] in float32 at least."""
        logits_RV = linear(hidden_RD, self.weight_VD, self.bias_V)
        logits_RV = logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32))
        return logits_RV if self.softcap is None else (logits_RV / self.softcap).tanh() * self.softcap

    def slope(self, logits_RV: torch.Tensor) -> torch.Tensor | None:
        """Derivative of the logits by what went into the tanh: `1 - (logits / softcap)^2`; None where it is 1."""
        return None if self.softcap is None else 1 - (logits_RV / self.softcap).square()

    def pull(self, grad_RV: torch.Tensor, slope_RV: torch.Tensor | None) -> torch.Tensor:
        """What a gradient of the logits is for the hidden states, [R, D]; the product in the layer's number format."""
        grad_RV = grad_RV if slope_RV is None else grad_RV * slope_RV
        return (grad_RV.to(self.weight_VD.dtype) @ self.weight_VD).to(grad_RV.dtype)


def head_logprobs(
    hidden_TD: torch.Tensor,
    weight_VD: torch.Tensor,
    bias_V: torch.Tensor | None,
    plan: HeadPlan,
    softcap: float | None = None,
    entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`log_softmax(logits / temperature)[target]` and the entropy there, for every occurrence in the caller's order.

    Softmax runs in float32 at least.

    Args:
        hidden_TD: the pack's hidden states.
        weight_VD: the output layer.
        bias_V: its bias, if it has one.
        plan: what is wanted.
        softcap: bound of the logits, see `Head`.
        entropy_gradient: whether the entropy carries a gradient. It costs a product with the output layer.

    Returns:
        (logprobs_M, entropy_M).
    """
    head = Head(weight_VD, bias_V, softcap)
    hidden_RD = hidden_TD.index_select(0, plan.hidden_R)
    run = _trained_head if head.trained else _frozen_head
    logprobs_M, entropy_M = run(hidden_RD, head, plan, entropy_gradient)
    return logprobs_M.index_select(0, plan.order_M), entropy_M.index_select(0, plan.order_M)


def _trained_head(
    hidden_RD: torch.Tensor, head: Head, plan: HeadPlan, entropy_gradient: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Chunk by chunk; logits are computed again in the backward pass instead of being kept."""
    parts: list[tuple[torch.Tensor, torch.Tensor]] = []
    for first, end, first_occ, end_occ in plan.chunks:
        row_M = plan.row_M[first_occ:end_occ] - first
        target_M = plan.target_M[first_occ:end_occ]
        inputs = (hidden_RD[first:end], head, plan.temperature(first, end), row_M, target_M, entropy_gradient)
        parts.append(checkpoint(_chunk_logprobs, *inputs, use_reentrant=False))
    return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropy for _, entropy in parts])


def _chunk_logprobs(
    hidden_RD: torch.Tensor,
    head: Head,
    temperature_R: torch.Tensor | None,
    row_M: torch.Tensor,
    target_M: torch.Tensor,
    entropy_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    logits_RV = head.logits(hidden_RD)
    if temperature_R is not None:
        logits_RV = logits_RV / temperature_R[:, None]
    lse_R = logits_RV.logsumexp(1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy_R = lse_R - ((logits_RV - lse_R[:, None]).exp() * logits_RV).sum(1)
    return logits_RV[row_M, target_M] - lse_R[row_M], entropy_R[row_M]


def _frozen_head(
    hidden_RD: torch.Tensor, head: Head, plan: HeadPlan, entropy_gradient: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    apply: Callable[..., tuple[torch.Tensor, torch.Tensor]] = _FrozenHead.apply  # pyright: ignore[reportUnknownMemberType, reportAssignmentType]
    return apply(hidden_RD, head, plan, entropy_gradient)


class _FrozenHead(torch.autograd.Function):
    """The same for an output layer that is not trained: two products with it instead of four.

    With p the softmax of a row's logits, H its entropy, and s the slope of the softcap (1 without one):

        d logprob_m / d hidden_r = (s_target W_target - sum_v p_v s_v W_v) / temperature_r
        d entropy_r / d hidden_r = -sum_v p_v (log p_v + H) s_v W_v / temperature_r

    Each sum is one row of D numbers that the forward pass can make while it has the logits, so the backward pass
    needs none.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_RD: torch.Tensor, head: Head, plan: HeadPlan, entropy_gradient: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = torch.promote_types(hidden_RD.dtype, torch.float32)
        logprobs_M = hidden_RD.new_empty(plan.row_M.shape[0], dtype=dtype)
        entropy_M, slope_M = torch.empty_like(logprobs_M), torch.ones_like(logprobs_M)
        mean_RD = hidden_RD.new_empty(hidden_RD.shape, dtype=dtype)
        spread_RD = torch.empty_like(mean_RD) if entropy_gradient else None
        for first, end, first_occ, end_occ in plan.chunks:
            rows, occurrences = slice(first, end), slice(first_occ, end_occ)
            row_M, target_M = plan.row_M[occurrences] - first, plan.target_M[occurrences]
            logits_RV = head.logits(hidden_RD[rows])
            slope_RV = head.slope(logits_RV)
            if slope_RV is not None:
                slope_M[occurrences] = slope_RV[row_M, target_M]
            temperature_R = plan.temperature(first, end)
            if temperature_R is not None:
                logits_RV /= temperature_R[:, None]
            logp_RV = logits_RV.sub_(logits_RV.logsumexp(1)[:, None])
            logprobs_M[occurrences] = logp_RV[row_M, target_M]
            probs_RV = logp_RV.exp()
            entropy_R = -torch.linalg.vecdot(probs_RV, logp_RV)
            entropy_M[occurrences] = entropy_R[row_M]
            mean_RD[rows] = head.pull(probs_RV, slope_RV)
            if spread_RD is not None:
                spread_RD[rows] = head.pull(logp_RV.add_(entropy_R[:, None]).mul_(probs_RV), slope_RV)
        ctx.save_for_backward(head.weight_VD, mean_RD, slope_M, spread_RD)
        ctx.plan, ctx.dtype = plan, hidden_RD.dtype
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy_M)
        return logprobs_M, entropy_M

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        weight_VD, mean_RD, slope_M, spread_RD = ctx.saved_tensors
        plan: HeadPlan = ctx.plan
        grad_M = grads[0].to(mean_RD.dtype)
        grad_RD = mean_RD * -_by_row(grad_M, plan)
        targets_MD = weight_VD[plan.target_M].to(grad_RD.dtype) * (grad_M * slope_M)[:, None]
        grad_RD.index_add_(0, plan.row_M, targets_MD)
        if spread_RD is not None:
            grad_RD -= spread_RD * _by_row(grads[1].to(mean_RD.dtype), plan)
        if not plan.unit_temperature:
            grad_RD /= plan.temperature_R[:, None]
        return grad_RD.to(ctx.dtype), None, None, None


def _by_row(grad_M: torch.Tensor, plan: HeadPlan) -> torch.Tensor:
    """[R, 1], the sum over the occurrences of each row."""
    return grad_M.new_zeros(plan.hidden_R.shape[0]).index_add_(0, plan.row_M, grad_M)[:, None]
