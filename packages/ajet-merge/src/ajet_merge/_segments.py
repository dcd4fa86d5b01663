"""The arrays of one pack: its tokens as a tree, and the heavy paths attention runs over."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ._arrays import MAX_ID, IntArray
from ._layout import Layout, as_i32, concat_ranges
from .errors import MergeError


class Tree(NamedTuple):
    """A part of a forest, closed under ancestors, with its own numbering. T tokens."""

    forest_index: IntArray
    parent: IntArray
    subtree_end: IntArray


@dataclass(frozen=True, eq=False, slots=True)
class Segments:
    """Maximal runs of tokens each of which follows its parent. See `Pack` for the fields."""

    seg_start: IntArray
    seg_attach: IntArray
    cu_seqlens_k: IntArray
    kv_ptr: IntArray
    kv_run_start: IntArray
    kv_run_len: IntArray


def subtree(layout: Layout, above: list[int], leaf_nodes: list[int]) -> Tree:
    """The paths to the given leaves, in depth-first preorder with the longest child *of this part* first.

    `above` is `layout.parent` as a list, made once for all parts: a list is quicker one number at a time.
    """
    nodes = _ordered(layout, above, leaf_nodes)
    place = {node: index for index, node in enumerate(nodes)}
    parents = as_i32([place.get(above[node], -1) for node in nodes])
    lengths = layout.length[nodes]
    ends = np.cumsum(lengths, dtype=np.int32)
    parent = np.arange(-1, lengths.sum() - 1, dtype=np.int32)
    parent[ends - lengths] = np.where(parents < 0, -1, ends[parents] - 1)
    subtree_ends = ends.tolist()
    for index in range(len(nodes) - 1, -1, -1):
        if parents[index] >= 0:
            subtree_ends[parents[index]] = max(subtree_ends[parents[index]], subtree_ends[index])
    return Tree(concat_ranges(layout.start[nodes], lengths), parent, np.repeat(as_i32(subtree_ends), lengths))


def _ordered(layout: Layout, above: list[int], leaf_nodes: list[int]) -> list[int]:
    """The leaves and their ancestors in preorder, trees in the forest's order.

    The height that orders children counts these nodes only; ties are broken by the first token, as in the forest.
    """
    kept: set[int] = set()
    for leaf in leaf_nodes:
        node = leaf
        while node >= 0 and node not in kept:
            kept.add(node)
            node = above[node]
    nodes = sorted(kept)
    height = dict(zip(nodes, layout.length[nodes].tolist(), strict=True))  # its own tokens, then those below it
    first_token = dict(zip(nodes, layout.tokens[layout.start[nodes]].tolist(), strict=True))
    below = dict.fromkeys(nodes, 0)
    children: dict[int, list[int]] = {node: [] for node in nodes}
    roots: list[int] = []
    for node in reversed(nodes):  # children come after their parent
        height[node] += below[node]
        if above[node] < 0:
            roots.append(node)
        else:
            children[above[node]].append(node)
            below[above[node]] = max(below[above[node]], height[node])
    ordered: list[int] = []
    stack = roots  # last first, so the first root is on top
    while stack:
        node = stack.pop()
        ordered.append(node)
        stack += sorted(children[node], key=lambda child: (height[child], -first_token[child]))
    return ordered


def segments(parent: IntArray) -> Segments:
    """Cut a preorder into heavy paths, and find the runs of keys each of them attends to."""
    size = parent.size
    starts = np.flatnonzero(parent != np.arange(-1, size - 1)) if size else np.empty(0, np.int64)
    starts = np.union1d(starts, [0]) if size else starts  # a root has no parent to follow, the first one included
    bounds: list[int] = [*starts.tolist(), size]
    attach = parent[starts]
    holder = np.searchsorted(starts, attach, side="right") - 1  # the segment it hangs off; -1 at roots
    prefixes: list[list[tuple[int, int]]] = []  # the runs of a segment's ancestors, from the root down
    runs: list[tuple[int, int]] = []
    pointers, key_lengths = [0], [0]
    for index, (at, inside) in enumerate(zip(attach.tolist(), holder.tolist(), strict=True)):
        prefix: list[tuple[int, int]] = []
        if at >= 0:
            prefix = [*prefixes[inside], (bounds[inside], at + 1 - bounds[inside])]
        prefixes.append(prefix)
        own = (bounds[index], bounds[index + 1] - bounds[index])
        runs += [*prefix, own]
        pointers.append(len(runs))
        key_lengths.append(key_lengths[-1] + sum(length for _, length in prefix) + own[1])
    if key_lengths[-1] > MAX_ID:
        raise MergeError(
            f"budget: the segments of one pack attend to {key_lengths[-1]} keys in all, more than int32 can count; "
            "use a smaller budget"
        )
    return Segments(
        seg_start=as_i32(bounds),
        seg_attach=attach,
        cu_seqlens_k=as_i32(key_lengths),
        kv_ptr=as_i32(pointers),
        kv_run_start=as_i32([start for start, _ in runs]),
        kv_run_len=as_i32([length for _, length in runs]),
    )
