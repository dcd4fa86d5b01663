"""Packs: parts of a forest that fit one forward pass."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ._arguments import cost, integer
from ._arrays import BoolArray, FloatArray, IntArray
from ._balance import balance
from ._cut import cut, fill, find_leaves, leaf_packs
from ._layout import as_i32
from ._segments import Tree, segments, subtree
from .errors import MergeError, PathTooLongError

if TYPE_CHECKING:
    from .forest import Forest

TOKEN_COST = 1.0
DEPTH_COST = 1 / 24576
"""Per layer a token's linear maps cost about 24 h^2 flops and each key it attends to about 4 h: 1 / (6 h), h = 4096."""


@dataclass(frozen=True, eq=False, slots=True)
class Pack:
    """A part of a forest, closed under ancestors, ready for one forward pass: T tokens, S segments, M occurrences.

    All indices are local to the pack unless said otherwise. Tokens stand in depth-first preorder, the child with the
    longest path in this pack first, trees in the order of the forest. Attention is exact with position = `pos` and each
    token seeing its ancestors and itself: key k for query q when `k <= q < subtree_end[k]`.

    Segments are heavy paths: contiguous runs of tokens in which each is the parent of the next. Segment s's queries are
    tokens `cu_seqlens_q[s]:cu_seqlens_q[s + 1]`. Its keys are all ancestors by depth, then the segment itself: runs
    `kv_ptr[s]:kv_ptr[s + 1]` of (`kv_run_start`, `kv_run_len`), concatenated. Causal attention aligned at the bottom
    right over these keys is the forest's mask.

    All occurrences of a call are in one pack, so that ratios over whole sequences need no exchange between packs; the
    call of occurrence m is `Forest.occurrences.call[occ_index[m]]`.

    The loss is `sum(weight * loss)` over the occurrences of all packs. The log-probability of occurrence m is
    `log_softmax(logits[occ_predictor[m]])[occ_target[m]]`: never a shift by one, which leaks across segments.

    A dummy gives a rank without work something to run: two tokens of id 0 that belong to no forest, and one occurrence
    of weight, advantage and logprob 0, so that the loss is connected and its gradient exactly zero. Its `forest_index`
    and `occ_index` hold -1.

    Attributes:
        tokens: i32[T], token ids.
        pos: i32[T], position in the sequence.
        parent: i32[T], the token before; -1 at roots.
        subtree_end: i32[T], one past the token's last descendant.
        forest_index: i32[T], the forest's token.
        seg_start: i32[S+1], first token of each segment, and T.
        seg_attach: i32[S], the token the segment hangs off; -1 at roots.
        cu_seqlens_q: i32[S+1], cumulative query lengths; equal to `seg_start`, because segments tile the pack.
        cu_seqlens_k: i32[S+1], cumulative key lengths.
        kv_ptr: i32[S+1], first run of keys of each segment, and R.
        kv_run_start: i32[R], first token of each run of keys.
        kv_run_len: i32[R], its length, at least 1.
        occ_predictor: i32[M], the token whose hidden state predicts the occurrence: `parent[occ_token]`.
        occ_target: i32[M], the token id to predict.
        occ_token: i32[M], the token trained.
        occ_index: i32[M], index into `Forest.occurrences`, ascending. Packs partition these.
        logprob: f32[M], of the occurrence.
        advantage: f32[M], of the occurrence.
        weight: f32[M], of the occurrence.
        context_exact: bool[M]; where False `logprob` must not be the denominator of a ratio (see `Call.context_exact`).
        rank: the rank to run it.
        is_dummy: whether it only keeps a rank in step.
        cost: token_cost * T + depth_cost * sum(pos + 1); 0.0 for dummies.
    """

    tokens: IntArray
    pos: IntArray
    parent: IntArray
    subtree_end: IntArray
    forest_index: IntArray
    seg_start: IntArray
    seg_attach: IntArray
    cu_seqlens_q: IntArray
    cu_seqlens_k: IntArray
    kv_ptr: IntArray
    kv_run_start: IntArray
    kv_run_len: IntArray
    occ_predictor: IntArray
    occ_target: IntArray
    occ_token: IntArray
    occ_index: IntArray
    logprob: FloatArray
    advantage: FloatArray
    weight: FloatArray
    context_exact: BoolArray
    rank: int
    is_dummy: bool
    cost: float

    @property
    def num_tokens(self) -> int:
        """T."""
        return self.tokens.size

    @property
    def num_segments(self) -> int:
        """S."""
        return self.seg_attach.size


def pack_forest(
    forest: "Forest", budget: int, max_path: int | None, ranks: int, token_cost: float, depth_cost: float
) -> list[Pack]:
    """See `Forest.packs`."""
    _check(forest, budget, max_path, ranks)
    token_cost, depth_cost = cost("token_cost", token_cost), cost("depth_cost", depth_cost)
    leaves = find_leaves(forest.layout, _training_nodes(forest))
    groups = fill(cut(leaves, budget), budget)
    homes = _occurrences_by_pack(forest, leaves.node, leaf_packs(groups, leaves), len(groups))
    above = forest.layout.parent.tolist()
    packs: list[Pack] = []
    for pieces, home in zip(groups, homes, strict=True):
        leaf_nodes = [node for piece in pieces for node in leaves.node[piece.first : piece.last]]
        tree = subtree(forest.layout, above, leaf_nodes)
        packs.append(_build(forest, tree, home, token_cost, depth_cost))
    packs += [_dummy() for _ in range(-len(packs) % ranks)]
    parts = balance([pack.cost for pack in packs], ranks)
    return [replace(packs[item], rank=rank) for rank, items in enumerate(parts) for item in items]


def _check(forest: "Forest", budget: int, max_path: int | None, ranks: int) -> None:
    if integer("budget", budget) < 2:
        raise MergeError(f"budget={budget}: a pack needs room for at least 2 tokens, a token and its predictor")
    if max_path is not None:
        integer("max_path", max_path, least=1)
    integer("ranks", ranks, least=1)
    limit, name = (budget, "budget") if max_path is None or budget < max_path else (max_path, "max_path")
    for index in np.unique(forest.occurrences.call).tolist():
        call = forest.calls[index]
        if len(call) > limit:
            raise PathTooLongError(index, call.call_id, len(call), limit, name)


def _training_nodes(forest: "Forest") -> IntArray:
    """The nodes that calls with occurrences end with."""
    return forest.layout.call_node[np.unique(forest.occurrences.call)]


def _occurrences_by_pack(forest: "Forest", leaf_nodes: list[int], owner: IntArray, packs: int) -> list[IntArray]:
    """The occurrences each pack trains: a call's live where the first leaf from its last node on does."""
    leaf = np.searchsorted(leaf_nodes, forest.layout.call_node[forest.occurrences.call], side="left")
    home = owner[leaf]
    order = np.argsort(home, kind="stable").astype(np.int32)
    bounds = np.searchsorted(home[order], np.arange(packs + 1)).tolist()
    return [order[first:last] for first, last in pairwise(bounds)]


def _build(forest: "Forest", tree: Tree, occ_index: IntArray, token_cost: float, depth_cost: float) -> Pack:
    pos = forest.pos[tree.forest_index]
    order = np.argsort(tree.forest_index)
    occurrences = forest.occurrences
    trained = occurrences.token[occ_index]
    occ_token = order[np.searchsorted(tree.forest_index, trained, sorter=order)].astype(np.int32)
    return _assemble(
        tree,
        tokens=forest.tokens[tree.forest_index],
        pos=pos,
        occ_token=occ_token,
        occ_index=occ_index,
        logprob=occurrences.logprob[occ_index],
        advantage=occurrences.advantage[occ_index],
        weight=occurrences.weight[occ_index],
        context_exact=occurrences.context_exact[occ_index],
        cost=token_cost * pos.size + depth_cost * (int(pos.sum(dtype=np.int64)) + pos.size),
    )


def _dummy() -> Pack:
    zero = np.zeros(1, np.float32)
    return _assemble(
        Tree(forest_index=as_i32([-1, -1]), parent=as_i32([-1, 0]), subtree_end=as_i32([2, 2])),
        tokens=as_i32([0, 0]),
        pos=as_i32([0, 1]),
        occ_token=as_i32([1]),
        occ_index=as_i32([-1]),
        logprob=zero,
        advantage=zero,
        weight=zero,
        context_exact=np.ones(1, np.bool_),
        cost=0.0,
        is_dummy=True,
    )


def _assemble(
    tree: Tree,
    tokens: IntArray,
    pos: IntArray,
    occ_token: IntArray,
    occ_index: IntArray,
    logprob: FloatArray,
    advantage: FloatArray,
    weight: FloatArray,
    context_exact: BoolArray,
    cost: float,
    is_dummy: bool = False,
) -> Pack:
    runs = segments(tree.parent)
    return Pack(
        tokens=tokens,
        pos=pos,
        parent=tree.parent,
        subtree_end=tree.subtree_end,
        forest_index=tree.forest_index,
        seg_start=runs.seg_start,
        seg_attach=runs.seg_attach,
        cu_seqlens_q=runs.seg_start.copy(),
        cu_seqlens_k=runs.cu_seqlens_k,
        kv_ptr=runs.kv_ptr,
        kv_run_start=runs.kv_run_start,
        kv_run_len=runs.kv_run_len,
        occ_predictor=tree.parent[occ_token],
        occ_target=tokens[occ_token],
        occ_token=occ_token,
        occ_index=occ_index,
        logprob=logprob,
        advantage=advantage,
        weight=weight,
        context_exact=context_exact,
        rank=0,
        is_dummy=is_dummy,
        cost=cost,
    )
