"""What each token of a pack attends to, in the forms that the backends need."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch

from ajet_core.errors import ConfigError
from ajet_server.train.attention.backends import MAX_DENSE, Backend

if TYPE_CHECKING:
    from ajet_merge import Pack

_MASK_CACHE = 1 << 26
"""Elements of masks (one byte each) that a layout keeps for its other layers; more are made anew in each layer."""


class Block(NamedTuple):
    """Queries [q_start, q_end) of a pack against its keys [k_start, k_end): all, or causally where these are equal."""

    q_start: int
    q_end: int
    k_start: int
    k_end: int
    causal: bool


@dataclass(eq=False)
class PackLayout:
    """How one pack's T tokens attend, on the device. S segments, R runs of keys, K keys in all.

    Attributes:
        backend: who computes it.
        q_lens: S query lengths; they tile the pack.
        k_lens: S key lengths.
        runs: R pairs (first token, length); concatenated they are the segments' keys.
        blocks: the same pairs of query and key, each once, as blocks of the pack itself.
        gather_K: i64[K], the runs as token indices.
        cu_q: i32[S + 1], cumulative query lengths.
        cu_k: i32[S + 1], cumulative key lengths.
        pos_T: i64[T], position of each token in its sequence.
        end_T: i64[T], one past each token's last descendant.
    """

    backend: Backend
    q_lens: list[int]
    k_lens: list[int]
    runs: list[tuple[int, int]]
    blocks: list[Block]
    gather_K: torch.Tensor
    cu_q: torch.Tensor
    cu_k: torch.Tensor
    pos_T: torch.Tensor
    end_T: torch.Tensor
    _masks: dict[tuple[int, int, int | None], torch.Tensor] = field(
        default_factory=dict[tuple[int, int, int | None], torch.Tensor]
    )
    _cached: int = 0

    @classmethod
    def of(cls, pack: "Pack", backend: Backend, device: torch.device) -> "PackLayout":
        """Takes the layout from a pack.

        Raises:
            ConfigError: the pack is too large for the dense mask.
        """
        if backend == "dense" and pack.num_tokens > MAX_DENSE:
            raise ConfigError(
                f"trainer.attention: 'dense' makes a mask of tokens x tokens and is for packs of at most {MAX_DENSE}, "
                f"but one has {pack.num_tokens}; use 'auto', or set trainer.pack_tokens to {MAX_DENSE} or less",
                field="trainer.attention",
            )
        starts, lengths = pack.kv_run_start.tolist(), pack.kv_run_len.tolist()
        runs = list(zip(starts, lengths, strict=True))
        cu_q, cu_k = torch.from_numpy(pack.cu_seqlens_q.copy()), torch.from_numpy(pack.cu_seqlens_k.copy())
        gather_K = torch.cat([torch.arange(start, start + length) for start, length in runs])
        return cls(
            backend,
            q_lens=cu_q.diff().tolist(),
            k_lens=cu_k.diff().tolist(),
            runs=runs,
            blocks=list(_blocks(pack)),
            gather_K=gather_K.to(device),
            cu_q=cu_q.to(device),
            cu_k=cu_k.to(device),
            pos_T=torch.from_numpy(pack.pos.copy()).long().to(device),
            end_T=torch.from_numpy(pack.subtree_end.copy()).long().to(device),
        )

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence in the pack."""
        return max(self.k_lens)

    @property
    def single_path(self) -> bool:
        """True when the segments' keys are the pack itself, so that nothing need be gathered."""
        return len(self.runs) == len(self.q_lens)

    def mask(self, rows: int, keys: int, window: int | None) -> torch.Tensor:
        """The mask bool[rows, keys] of the last rows of a sequence, aligned at the bottom right.

        Args:
            rows: the rows.
            keys: the keys, the last of which is the last row.
            window: keys that a row may look at, itself included; None for all before it.
        """
        mask = self._masks.get((rows, keys, window))
        if mask is None:
            last = keys - rows
            mask = torch.ones(rows, keys, dtype=torch.bool, device=self.gather_K.device).tril_(last)
            mask = mask if window is None else mask.triu_(last - window + 1)
            if self._cached + mask.numel() <= _MASK_CACHE:
                self._masks[rows, keys, window] = mask
                self._cached += mask.numel()
        return mask


def _blocks(pack: "Pack") -> Iterator[Block]:
    """Cuts the mask of a forest into blocks that need no mask of their own.

    One causal block for each segment; and for each edge that leaves a heavy path one rectangle: the whole subtree
    below it, which is contiguous in preorder, against the beginning of that path, up to where the edge leaves it. What
    is above that path is in the rectangle of its own edge, whose queries hold this subtree too. Siblings that leave at
    the same token share one rectangle.
    """
    bounds: list[int] = pack.seg_start.tolist()
    ends: list[int] = pack.subtree_end[pack.seg_start[:-1]].tolist()
    attach: list[int] = pack.seg_attach.tolist()
    holders: list[int] = (pack.seg_start[:-1].searchsorted(pack.seg_attach, side="right") - 1).tolist()
    yield from (Block(start, end, start, end, True) for start, end in pairwise(bounds))
    waiting: dict[int, Block] = {}  # by the token where they leave
    for start, end, at, holder in zip(bounds[:-1], ends, attach, holders, strict=True):
        if at >= 0:
            first = waiting[at].q_start if at in waiting else start
            waiting[at] = Block(first, end, bounds[holder], at + 1, False)
    yield from waiting.values()
