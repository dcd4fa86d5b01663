"""Draws one token per row of logits: all rows at once, each with its own temperature, truncation and random stream.

Shapes: S rows that sample, V vocabulary, R some of the rows, K candidates, N blocks.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ajet_core.errors import EngineFailedError
from ajet_server.engines.constraint import Constraint
from ajet_server.worker.protocol import Sampling

_CANDIDATES = 512
"""Likeliest tokens looked at first for top-p; a full sort of a large vocabulary takes ten times as long."""
_BLOCK = 256
"""Weights per block of the two-level search."""


class Draw(NamedTuple):
    """A sampled token with its log-probability and its likeliest alternatives, likeliest first."""

    token: int
    logprob: float
    top: list[tuple[int, float]]


class SampledRow(Protocol):
    """Whom a row of logits belongs to."""

    rng: np.random.Generator

    @property
    def request_id(self) -> str:
        """For the error message."""
        ...

    @property
    def sampling(self) -> Sampling:
        """How to sample."""
        ...

    constraint: Constraint | None


def sample(logits_SV: Tensor, rows: Sequence[SampledRow]) -> list[Draw]:
    """Draws one token for every row. The logits are overwritten: a copy would take as long as the rest.

    Distribution and log-probability are those that `Sampling` describes.

    Raises:
        EngineFailedError: a row of logits holds NaN or infinity; names the call.
    """
    _add_biases(logits_SV, rows)
    _mask(logits_SV, rows)
    peak_S = logits_SV.amax(-1)
    _refuse_non_finite(peak_S, rows)
    temperature_S = peak_S.new_tensor([row.sampling.temperature or 1.0 for row in rows])
    # The peak is subtracted before the division, so that a low temperature cannot overflow.
    scaled_SV = logits_SV.sub_(peak_S[:, None]).div_(temperature_S[:, None])
    weights_SV = scaled_SV.exp()
    log_total_S = _block_sums(_blocks(weights_SV)).sum(-1).log()
    ids_S = _choose(scaled_SV, weights_SV, rows)
    logprobs_S = scaled_SV.gather(1, ids_S[:, None])[:, 0] - log_total_S
    tops = _likeliest(scaled_SV, log_total_S, rows)
    return [Draw(*draw) for draw in zip(ids_S.tolist(), logprobs_S.tolist(), tops, strict=True)]


def _add_biases(logits_SV: Tensor, rows: Sequence[SampledRow]) -> None:
    """Adds every row's biases, those of all rows in one go."""
    biases = [(at, *pair) for at, row in enumerate(rows) for pair in row.sampling.logit_bias]
    if biases:
        places, ids, values = zip(*biases, strict=True)
        index = torch.tensor([places, ids], device=logits_SV.device)
        logits_SV.index_put_((index[0], index[1]), logits_SV.new_tensor(values), accumulate=True)


def _mask(logits_SV: Tensor, rows: Sequence[SampledRow]) -> None:
    """Takes the ids that a schema does not allow out of its rows. The other rows are not touched."""
    held = [(at, row.constraint.allowed) for at, row in enumerate(rows) if row.constraint is not None]
    if held:
        places = [at for at, _ in held]
        allowed_RV = torch.from_numpy(np.stack([allowed_V for _, allowed_V in held])).to(logits_SV.device)
        logits_SV[places] = logits_SV[places].masked_fill(~allowed_RV, -torch.inf)


def _refuse_non_finite(peak_S: Tensor, rows: Sequence[SampledRow]) -> None:
    """A row's maximum is NaN if any logit is, and infinite if any is +infinity or all are -infinity."""
    for row, peak in zip(rows, peak_S.tolist(), strict=True):
        if not np.isfinite(peak):
            raise EngineFailedError(
                f"the model's logits for request {row.request_id!r} are not finite (their maximum is {peak}); "
                "the weights have diverged or are corrupted"
            )


def _choose(scaled_SV: Tensor, weights_SV: Tensor, rows: Sequence[SampledRow]) -> Tensor:
    """Returns i64[S]: the likeliest id where the temperature is 0, a drawn one elsewhere."""
    random = [at for at, row in enumerate(rows) if row.sampling.temperature > 0]
    greedy = [at for at, row in enumerate(rows) if row.sampling.temperature == 0]
    ids_S = torch.empty(len(rows), dtype=torch.int64, device=scaled_SV.device)
    if greedy:
        ids_S[greedy] = scaled_SV[greedy].argmax(-1)
    if random:
        weights_RV = weights_SV[random] if greedy else weights_SV
        ids_S[random] = _draw(_truncate(weights_RV, [rows[at].sampling for at in random]), [rows[at] for at in random])
    return ids_S


def _truncate(weights_RV: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Sets the weights outside top-k and top-p to 0."""
    cut = [at for at, sampling in enumerate(samplings) if sampling.top_k or sampling.top_p < 1]
    if cut:
        weights_RV = weights_RV.clone()
        weights_RV[cut] = _kept(weights_RV[cut], [samplings[at] for at in cut], _CANDIDATES)
    return weights_RV


def _kept(weights_RV: Tensor, samplings: Sequence[Sampling], width: int) -> Tensor:
    """Looks at the `width` likeliest tokens, and at more of them where that does not settle it.

    Top-k cuts first; top-p then keeps the fewest tokens whose share of what top-k left reaches it.
    """
    size = weights_RV.shape[1]
    limits = [min(sampling.top_k or size, size) for sampling in samplings]
    limit_R = torch.tensor(limits, device=weights_RV.device)
    share_R = torch.tensor([sampling.top_p for sampling in samplings], device=weights_RV.device, dtype=torch.float64)
    values_RK, ids_RK = weights_RV.topk(min(width, size))
    values_RK = values_RK.double().where(
        torch.arange(values_RK.shape[1], device=limit_R.device) < limit_R[:, None], 0.0
    )
    mass_R = values_RK.sum(-1)
    total_R = torch.where(limit_R <= width, mass_R, weights_RV.sum(-1, dtype=torch.float64))
    settled_R = (limit_R <= width) | ((limit_R == size) & (mass_R >= share_R * total_R))
    if width < size and not bool(settled_R.all()):
        return _kept(weights_RV, samplings, 8 * width)
    before_RK = values_RK.cumsum(-1) - values_RK
    values_RK = values_RK.where(before_RK < (share_R * total_R)[:, None], 0.0)
    return torch.zeros_like(weights_RV).scatter_(1, ids_RK, values_RK.to(weights_RV.dtype))


def _draw(weights_RV: Tensor, rows: Sequence[SampledRow]) -> Tensor:
    """Inverts each row's cumulative weights at one uniform: first the block it falls into, then the place in it.

    Two levels, because a cumulative sum over the whole vocabulary in float32 would lose the rare tokens to rounding,
    and in float64 would take longer than the rest of sampling.
    """
    blocks_RNB = _blocks(weights_RV)
    uniform_R = torch.tensor([row.rng.random() for row in rows], dtype=torch.float64, device=weights_RV.device)
    block_R, rest_R = _invert(_block_sums(blocks_RNB), uniform_R)
    place_R, _ = _invert(blocks_RNB[torch.arange(len(rows), device=block_R.device), block_R].double(), rest_R)
    return block_R * _BLOCK + place_R


def _blocks(weights_RV: Tensor) -> Tensor:
    """Returns the weights as f[R, N, 256], the last block filled up with 0."""
    count, size = weights_RV.shape
    return functional.pad(weights_RV, (0, -size % _BLOCK)).view(count, -1, _BLOCK)


def _block_sums(blocks_RNB: Tensor) -> Tensor:
    """Returns f64[R, N]. Within a block float32 is exact enough (1e-7), and summing in float64 copies everything."""
    return blocks_RNB.sum(-1).double()


def _invert(weights_RN: Tensor, share_R: Tensor) -> tuple[Tensor, Tensor]:
    """Finds the item at a share (0 <= share < 1) of the total, and the share of that item that lies before the point.

    Never returns an item of weight 0: the point is kept below the total, and the search passes items that add nothing.
    """
    ends_RN = weights_RN.cumsum(-1)
    total_R = ends_RN[:, -1]
    point_R = torch.minimum(share_R * total_R, torch.nextafter(total_R, torch.zeros_like(total_R)))
    item_R = torch.searchsorted(ends_RN, point_R[:, None], right=True)
    weight_R = weights_RN.gather(1, item_R)[:, 0]
    start_R = ends_RN.gather(1, item_R)[:, 0] - weight_R
    return item_R[:, 0], ((point_R - start_R) / weight_R).clamp(0, 1)


def _likeliest(scaled_SV: Tensor, log_total_S: Tensor, rows: Sequence[SampledRow]) -> list[list[tuple[int, float]]]:
    """Returns each row's `top_logprobs` likeliest ids with their log-probabilities, without those that cannot come."""
    tops: list[list[tuple[int, float]]] = [[] for _ in rows]
    wanted = [at for at, row in enumerate(rows) if row.sampling.top_logprobs]
    if wanted:
        widest = max(rows[at].sampling.top_logprobs for at in wanted)
        values_RK, ids_RK = scaled_SV[wanted].topk(min(widest, scaled_SV.shape[1]))
        values_RK = values_RK - log_total_S[wanted, None]
        for at, ids, values in zip(wanted, ids_RK.tolist(), values_RK.tolist(), strict=True):
            likeliest = list(zip(ids, values, strict=True))[: rows[at].sampling.top_logprobs]
            tops[at] = [(token, value) for token, value in likeliest if value > -np.inf]
    return tops
