"""Lays the new tokens of a step out as one pass of the model."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ajet_server.engines.attention import Segment, StepPlan
from ajet_server.engines.calls import Call
from ajet_server.engines.kv_slots import SlotStore


@dataclass(frozen=True, slots=True)
class Step:
    """What one step computes.

    Attributes:
        rows: calls with one token to compute; the call at index i holds slot i.
        chunks: calls with several tokens to compute, and how many in this step.
        riders: calls whose ids are all another's that this step completes, and that other. They sample from the
            same logits, so the prompt of a group is computed once, its last token included.
    """

    rows: list[Call]
    chunks: list[tuple[Call, int]]
    riders: list[tuple[Call, Call]] = field(default_factory=list[tuple[Call, Call]])

    @property
    def tokens(self) -> int:
        """Tokens computed."""
        return len(self.rows) + sum(count for _, count in self.chunks)

    def sampling(self) -> tuple[list[Call], list[int]]:
        """Returns the calls of which nothing is left to compute after this step, and the places of their logits."""
        calls, places, end = list(self.rows), list(range(len(self.rows))), len(self.rows)
        for call, count in self.chunks:
            end += count
            if call.uncomputed == count:
                riders = [rider for rider, leader in self.riders if leader is call]
                calls += [call, *riders]
                places += [end - 1] * (1 + len(riders))
        return calls, places

    def advance(self) -> None:
        """Notes that the step has been computed."""
        for call in self.rows:
            call.computed += 1
        for call, count in self.chunks:
            call.computed += count


def pack(step: Step, store: SlotStore, device: torch.device) -> StepPlan:
    """Makes the tensors of a step. The store must have room for every token of it."""
    parts = [(call, 1) for call in step.rows] + step.chunks
    ids = np.concatenate([call.tokens[call.computed : call.computed + count] for call, count in parts])
    places = np.concatenate([np.arange(call.computed, call.computed + count) for call, count in parts])
    rows, position_ids = len(step.rows), torch.from_numpy(places).to(device)
    positions, longest = position_ids[:rows], int(places[:rows].max(initial=-1)) + 1
    return StepPlan(
        store=store,
        input_ids=torch.from_numpy(ids).to(device, torch.int64)[None],
        position_ids=position_ids[None],
        slots=torch.arange(rows, device=device),
        positions=positions,
        longest=longest,
        mask=_row_mask(positions, longest) if rows and places[:rows].min() + 1 < longest else None,
        segments=tuple(_segments(step, device)),
    )


def _row_mask(positions: Tensor, longest: int) -> Tensor:
    places = torch.arange(longest, device=positions.device)
    return (places <= positions[:, None])[:, None, None, :]


def _segments(step: Step, device: torch.device) -> list[Segment]:
    segments: list[Segment] = []
    offset = len(step.rows)
    for call, count in step.chunks:
        start, stop = call.computed, call.computed + count
        mask = torch.ones(count, stop, dtype=torch.bool, device=device).tril(start) if start else None
        segments.append(Segment(call.slot, start, stop, offset, mask))
        offset += count
    return segments
