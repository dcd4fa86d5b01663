"""A batch as the mini-batches of its optimizer steps: merged and packed, each with loss weights of its own."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from ajet_core.config import Job
from ajet_core.errors import ConfigError
from ajet_merge import Forest, PathTooLongError, merge
from ajet_server.models.supported import Level
from ajet_server.samples.merge import Batch
from ajet_server.samples.weights import with_loss_weights
from ajet_server.train.attention import Backend
from ajet_server.train.forward import PackTensors
from ajet_server.train.linear import linear_packs

if TYPE_CHECKING:
    from ajet_merge import ForestStats, Pack


@dataclass(frozen=True)
class MiniBatch:
    """What one optimizer step is computed from.

    Attributes:
        stats: what merging saved.
        packs: on the device; `call_M` counts the calls of the whole batch.
    """

    stats: "ForestStats"
    packs: list[PackTensors]

    @property
    def tokens(self) -> int:
        """Tokens that are computed."""
        return sum(pack.tokens_T.numel() for pack in self.packs)


def split_calls(batch: Batch, parts: int) -> list[npt.NDArray[np.int64]]:
    """Indices of the batch's calls, for each mini-batch: whole groups, dealt out in turn in the order they come in.

    A group is only split between parts when there are fewer groups than parts; an episode never is.
    """
    names = [group if batch.groups >= parts else episode for group, episode in batch.wholes]
    order = {name: index for index, name in enumerate(dict.fromkeys(names))}
    part_E = np.array([order[name] % parts for name in names])
    found = [np.flatnonzero(part_E[batch.episode_N] == part) for part in range(parts)]
    return [calls for calls in found if calls.size]


def mini_batches(batch: Batch, job: Job, attention: Backend, level: Level, device: torch.device) -> list[MiniBatch]:
    """Merges and packs each part of the batch by itself, as far as the model can share (`level`).

    Raises:
        ConfigError: a call is longer than `trainer.pack_tokens`.
    """
    made: list[MiniBatch] = []
    for call_indices in split_calls(batch, job.trainer.mini_batches):
        calls = [batch.calls[index] for index in call_indices.tolist()]
        forest = merge(with_loss_weights(calls, job.algorithm))
        packs = [
            _tensors(pack, forest, call_indices, batch, job, attention, device)
            for pack in _packs(forest, job.trainer.pack_tokens, level)
        ]
        made.append(MiniBatch(forest.stats, packs))
    return made


def _packs(forest: Forest, budget: int, level: Level) -> "list[Pack]":
    try:
        return forest.packs(budget) if level == "forest" else linear_packs(forest, budget, level)
    except PathTooLongError as error:
        raise ConfigError(
            f"trainer.pack_tokens: {error.limit} is less than the {error.length} tokens of call {error.call_id!r}; "
            f"use at least {error.length}",
            field="trainer.pack_tokens",
        ) from error


def _tensors(
    pack: "Pack",
    forest: Forest,
    call_indices: npt.NDArray[np.int64],
    batch: Batch,
    job: Job,
    attention: Backend,
    device: torch.device,
) -> PackTensors:
    call_M = call_indices[forest.occurrences.call[pack.occ_index]].astype(np.int32)
    token_M = batch.token_starts[call_M] + forest.occurrences.t[pack.occ_index]
    chunk, temperature_M = job.trainer.logprob_chunk, batch.temperatures[call_M]
    return PackTensors.of(pack, temperature_M, call_M, attention, chunk, device, token_M)
