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


def _chunks(row_M: npt.NDArray[np.int64], rows: int, chunk: int) -> list[tuple[int, int, int, int]]:
    bounds = [*range(0, rows, chunk), rows]
    marks = np.searchsorted(row_M, bounds).tolist()
    return [(bounds[i], bounds[i + 1], marks[i], marks[i + 1]) for i in range(len(bounds) - 1)]


def head_logprobs(
    hidden_TD: torch.Tensor, weight_VD: torch.Tensor, bias_V: torch.Tensor | None, plan: HeadPlan
) -> tuple[torch.Tensor, torch.Tensor]:
    """`log_softmax(logits / temperature)[target]` and the entropy there, for every occurrence in the caller's order.

    Softmax runs in float32 at least. The entropy carries no gradient.

    Args:
        hidden_TD: the pack's hidden states.
        weight_VD: the output layer.
        bias_V: its bias, if it has one.
        plan: what is wanted.

    Returns:
        (logprobs_M, entropy_M).
    """
    hidden_RD = hidden_TD.index_select(0, plan.hidden_R)
    trained = weight_VD.requires_grad or (bias_V is not None and bias_V.requires_grad)
    run: Callable[..., tuple[torch.Tensor, torch.Tensor]] = _trained_head if trained else _frozen_head
    logprobs_M, entropy_M = run(hidden_RD, weight_VD, bias_V, plan)
    return logprobs_M.index_select(0, plan.order_M), entropy_M.index_select(0, plan.order_M)


def _logits(
    hidden_RD: torch.Tensor, weight_VD: torch.Tensor, bias_V: torch.Tensor | None, temperature_R: torch.Tensor | None
) -> torch.Tensor:
    logits_RV = linear(hidden_RD, weight_VD, bias_V)
    logits_RV = logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32))
    return logits_RV if temperature_R is None else logits_RV / temperature_R[:, None]


def _trained_head(
    hidden_RD: torch.Tensor, weight_VD: torch.Tensor, bias_V: torch.Tensor | None, plan: HeadPlan
) -> tuple[torch.Tensor, torch.Tensor]:
    """Chunk by chunk; logits are computed again in the backward pass instead of being kept."""
    parts: list[tuple[torch.Tensor, torch.Tensor]] = []
    for first, end, first_occ, end_occ in plan.chunks:
        temperature_R = None if plan.unit_temperature else plan.temperature_R[first:end]
        row_M = plan.row_M[first_occ:end_occ] - first
        target_M = plan.target_M[first_occ:end_occ]
        inputs = (hidden_RD[first:end], weight_VD, bias_V, temperature_R, row_M, target_M)
        parts.append(checkpoint(_chunk_logprobs, *inputs, use_reentrant=False))
    return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropy for _, entropy in parts])


def _chunk_logprobs(
    hidden_RD: torch.Tensor,
    weight_VD: torch.Tensor,
    bias_V: torch.Tensor | None,
    temperature_R: torch.Tensor | None,
    row_M: torch.Tensor,
    target_M: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    logits_RV = _logits(hidden_RD, weight_VD, bias_V, temperature_R)
    lse_R = logits_RV.logsumexp(1)
    with torch.no_grad():
        entropy_R = lse_R - ((logits_RV - lse_R[:, None]).exp() * logits_RV).sum(1)
    return logits_RV[row_M, target_M] - lse_R[row_M], entropy_R[row_M]


def _frozen_head(
    hidden_RD: torch.Tensor, weight_VD: torch.Tensor, bias_V: torch.Tensor | None, plan: HeadPlan
) -> tuple[torch.Tensor, torch.Tensor]:
    apply: Callable[..., tuple[torch.Tensor, torch.Tensor]] = _FrozenHead.apply  # pyright: ignore[reportUnknownMemberType, reportAssignmentType]
    return apply(hidden_RD, weight_VD, bias_V, plan)


class _FrozenHead(torch.autograd.Function):
    """The same for an output layer that is not trained: two products with it instead of four.

    `d logprob_m / d hidden_r = (W[target_m] - sum_v p_rv W_v) / temperature_r`. The sum is one row of D numbers that
    the forward pass can make while it has the logits, so the backward pass needs none.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_RD: torch.Tensor, weight_VD: torch.Tensor, bias_V: torch.Tensor | None, plan: HeadPlan
    ) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = torch.promote_types(hidden_RD.dtype, torch.float32)
        logprobs_M = hidden_RD.new_empty(plan.row_M.shape[0], dtype=dtype)
        entropy_M = torch.empty_like(logprobs_M)
        mean_RD = hidden_RD.new_empty(hidden_RD.shape, dtype=dtype)
        for first, end, first_occ, end_occ in plan.chunks:
            temperature_R = None if plan.unit_temperature else plan.temperature_R[first:end]
            row_M = plan.row_M[first_occ:end_occ] - first
            logits_RV = _logits(hidden_RD[first:end], weight_VD, bias_V, temperature_R)
            lse_R = logits_RV.logsumexp(1)
            logprobs_M[first_occ:end_occ] = logits_RV[row_M, plan.target_M[first_occ:end_occ]] - lse_R[row_M]
            probs_RV = (logits_RV - lse_R[:, None]).exp_()
            entropy_M[first_occ:end_occ] = (lse_R - torch.linalg.vecdot(probs_RV, logits_RV))[row_M]
            mean_RD[first:end] = (probs_RV.to(weight_VD.dtype) @ weight_VD).to(dtype)
        ctx.save_for_backward(weight_VD, mean_RD)
        ctx.plan, ctx.dtype = plan, hidden_RD.dtype
        ctx.mark_non_differentiable(entropy_M)
        return logprobs_M, entropy_M

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        weight_VD, mean_RD = ctx.saved_tensors
        plan: HeadPlan = ctx.plan
        grad_M = grads[0].to(mean_RD.dtype)
        total_R = mean_RD.new_zeros(mean_RD.shape[0]).index_add_(0, plan.row_M, grad_M)
        grad_RD = mean_RD * -total_R[:, None]
        grad_RD.index_add_(0, plan.row_M, weight_VD[plan.target_M].to(grad_RD.dtype) * grad_M[:, None])
        if not plan.unit_temperature:
            grad_RD /= plan.temperature_R[:, None]
        return grad_RD.to(ctx.dtype), None, None, None
