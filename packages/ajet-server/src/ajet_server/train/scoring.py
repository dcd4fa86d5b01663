"""What is known of a batch before its first step: old log-probabilities, the reference, the critic, its advantages.

And the score of any tokens, for the probe.
"""

from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from peft import PeftModel

from ajet_core.config import Job
from ajet_core.config_algorithm import AlgorithmConfig, ValueConfig
from ajet_merge import Call, merge
from ajet_server.samples.credit import CriticFigures, with_critic
from ajet_server.samples.merge import Batch, advantages_with_kl
from ajet_server.train.attention import Backend
from ajet_server.train.forward import PackTensors, occurrence_logprobs
from ajet_server.train.minibatch import MiniBatch
from ajet_server.train.reference import at_tokens, by_token, token_kl, with_advantages, with_old, with_reference
from ajet_server.train.step import Progress
from ajet_server.train.value import ValueHead

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Models:
    """Who scores.

    Attributes:
        plain: the causal language model that is trained.
        reference: with `algorithm.kl`: the model whose adapter is switched off meanwhile, or a frozen copy.
        head: the critic's, with baseline `value`.
        autocast: number format of the matrix products when it is not that of the weights.
    """

    plain: "PreTrainedModel"
    reference: "PeftModel | PreTrainedModel | None"
    head: ValueHead | None
    autocast: torch.dtype | None


@dataclass(frozen=True)
class Scored:
    """A batch that is ready for its steps.

    Attributes:
        batch: with its final advantages, which are those of the packs.
        minis: the mini-batches.
        critic: how well the critic knew the returns.
    """

    batch: Batch
    minis: list[MiniBatch]
    critic: CriticFigures = field(default_factory=CriticFigures)

    @property
    def packs(self) -> list[PackTensors]:
        """Those of all mini-batches."""
        return [pack for mini in self.minis for pack in mini.packs]


def scored(batch: Batch, minis: list[MiniBatch], job: Job, models: Models, progress: Progress) -> Scored:
    """Asks the models what the algorithm needs to know, and makes the advantages that depend on it.

    Raises:
        RequestError: see `samples.credit.with_critic` and `train.reference.token_kl`.
    """
    minis = _with_models(minis, job, models, progress)
    algorithm, known = job.algorithm, Scored(batch, minis)
    if algorithm.value is not None:
        return _with_critic(known, algorithm, algorithm.value)
    if algorithm.kl is not None and algorithm.kl.place == "reward":
        kl_S = token_kl(batch, known.packs, algorithm.kl)
        kl_N = np.bincount(batch.token_calls, kl_S, len(batch.calls)).astype(np.float64)
        batch = advantages_with_kl(batch, kl_N, algorithm)
        return Scored(batch, [replace(mini, packs=with_advantages(batch, mini.packs)) for mini in minis])
    return known


def _with_models(minis: list[MiniBatch], job: Job, models: Models, progress: Progress) -> list[MiniBatch]:
    """The packs with `old_M`, `old_value_M` and `reference_M`, where they are needed."""
    recomputed = job.algorithm.old_logprobs == "recomputed" and len(minis) * job.trainer.epochs > 1
    if not recomputed and models.head is None and models.reference is None:
        return minis
    done, total = count(), sum(len(mini.packs) for mini in minis)

    def told(pack: PackTensors) -> PackTensors:
        progress("score", next(done), total)
        if recomputed or models.head is not None:
            (pack,) = with_old(models.plain, [pack], models.autocast, models.head, recomputed)
        if models.reference is not None:
            (pack,) = with_reference(models.reference, [pack], models.autocast)
        return pack

    return [replace(mini, packs=[told(pack) for pack in mini.packs]) for mini in minis]


def _with_critic(known: Scored, algorithm: AlgorithmConfig, config: ValueConfig) -> Scored:
    """Advantages and returns of all tokens, fixed over the whole batch before its first step."""
    batch, packs = known.batch, known.packs
    values_S = by_token(batch, packs, [_old_values(pack) for pack in packs])
    cost_S = np.zeros_like(values_S)
    if algorithm.kl is not None and algorithm.kl.place == "reward":
        cost_S = algorithm.kl.coef * token_kl(batch, packs, algorithm.kl)
    # A broken model's values are no numbers. They count as 0 here; its own pass will find them and skip the step.
    values_S = np.nan_to_num(values_S, posinf=0.0, neginf=0.0)
    batch, returns_S, figures = with_critic(batch, values_S, cost_S, config, algorithm.advantage_scale == "batch_std")
    returns = torch.from_numpy(returns_S)
    minis = [
        replace(
            mini,
            packs=[replace(pack, return_M=at_tokens(returns, pack)) for pack in with_advantages(batch, mini.packs)],
        )
        for mini in known.minis
    ]
    return Scored(batch, minis, figures)


def _old_values(pack: PackTensors) -> torch.Tensor:
    if pack.old_value_M is None:
        raise ValueError("a pack has no old_value_M: it did not come from `with_old` with a head")
    return pack.old_value_M


@torch.no_grad()
def score(
    plain: "PreTrainedModel",
    token_ids: npt.NDArray[np.int32],
    attention: Backend,
    chunk: int,
    autocast: torch.dtype | None,
) -> npt.NDArray[np.float32]:
    """Log-probabilities f32[T - 1] of token_ids[1:] at temperature 1, as one call in a pack of its own.

    Args:
        plain: the causal language model.
        token_ids: i32[T], at least 2.
        attention: the backend.
        chunk: occurrences whose logits are computed at a time.
        autocast: number format of the matrix products when it is not that of the weights.
    """
    call = Call(token_ids[:1], token_ids[1:], np.zeros(token_ids.size - 1, np.float32))
    (pack,) = merge([call]).packs(max(token_ids.size, 2))
    count = pack.occ_index.size
    ones, zeros = np.ones(count, np.float32), np.zeros(count, np.int32)
    tensors = PackTensors.of(pack, ones, zeros, attention, chunk, plain.device)
    logprobs_M, _ = occurrence_logprobs(plain, tensors, autocast)
    return logprobs_M.float().cpu().numpy()
