"""Cutting the leaves of a forest into pieces, and filling packs with pieces."""

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ._arrays import IntArray
from ._layout import Layout


@dataclass(frozen=True, slots=True)
class Leaves:
    """The leaves of a forest in depth-first order, and what running them costs.

    Attributes:
        node: the leaf's node in the layout.
        depth: tokens on its path.
        shared: tokens its path shares with the leaf before it; 0 where a tree begins.
    """

    node: list[int]
    depth: list[int]
    shared: list[int]


@dataclass(frozen=True, slots=True)
class Piece:
    """The leaves `first`..`last - 1`, and the number of tokens on their paths together."""

    first: int
    last: int
    tokens: int


def find_leaves(layout: Layout, ends: IntArray) -> Leaves:
    """The leaves of the part of a forest that is made of the paths to the nodes `ends`; nothing else need run."""
    inside = np.zeros(layout.start.size + 1, np.int64)
    inside[ends + 1] = 1
    inside = np.cumsum(inside)  # [k]: how many of `ends` come before node k
    nodes = np.arange(layout.start.size)
    after = np.searchsorted(layout.start, layout.end)  # the node that follows the subtree
    below = inside[after] - inside[nodes + 1]
    itself = inside[nodes + 1] - inside[nodes]
    own_end = np.cumsum(np.where(below + itself > 0, layout.length, 0))
    leaves = np.flatnonzero((itself > 0) & (below == 0))
    depth = (layout.depth + layout.length)[leaves]
    shared = depth - np.diff(own_end[leaves], prepend=0)  # in preorder a leaf's own tokens follow the leaf before it
    return Leaves(leaves.tolist(), depth.tolist(), shared.tolist())


def cut(leaves: Leaves, budget: int) -> list[Piece]:
    """Cut each tree into runs of leaves of at most `budget` tokens each, repeating as few tokens as possible.

    A piece i..j costs depth(i) + sum of depth(k) - shared(k) over k in i+1..j, so cutting before leaf k repeats
    shared(k) tokens. Ties are broken by the number of pieces. Every depth must be within the budget.
    """
    bounds = [index for index, shared in enumerate(leaves.shared) if shared == 0] + [len(leaves.node)]
    pieces: list[Piece] = []
    for first, last in pairwise(bounds):
        pieces += _cut_tree(leaves, first, last, budget)
    return pieces


def _cut_tree(leaves: Leaves, first: int, last: int, budget: int) -> list[Piece]:
    """Shortest path over the cuts, with a sliding window of feasible piece starts: linear in the number of leaves."""
    best: dict[int, tuple[int, int]] = {first: (0, 0)}  # cut before this leaf -> (repeated tokens, pieces) up to it
    came_from: dict[int, int] = {}
    window: deque[tuple[tuple[int, int], int]] = deque()  # (cost of starting a piece here, leaf), ascending in both
    before = {first: 0}  # leaf -> tokens of the tree before its own
    for end in range(first + 1, last + 1):
        start = end - 1
        repeated, count = best[start]
        cost = (repeated + (leaves.shared[start] if start > first else 0), count + 1)
        while window and window[-1][0] >= cost:
            window.pop()
        window.append((cost, start))
        before[end] = before[start] + leaves.depth[start] - leaves.shared[start]
        while _tokens(leaves, before, window[0][1], end) > budget:
            window.popleft()
        best[end], came_from[end] = window[0]
    pieces: list[Piece] = []
    end = last
    while end > first:
        start = came_from[end]
        pieces.append(Piece(start, end, _tokens(leaves, before, start, end)))
        end = start
    return pieces[::-1]


def _tokens(leaves: Leaves, before: dict[int, int], start: int, end: int) -> int:
    return before[end] - before[start] + leaves.shared[start]


def fill(pieces: list[Piece], budget: int) -> list[list[Piece]]:
    """Best-fit decreasing: the largest piece first, each into the fullest pack that still holds it.

    Pieces of one tree in one pack share their common prefix, so a pack may come out smaller than its pieces' sum.
    """
    packs: list[list[Piece]] = []
    room: list[tuple[int, int]] = []  # (tokens left, pack), ascending
    for piece in sorted(pieces, key=lambda piece: (-piece.tokens, piece.first)):
        at = bisect_left(room, (piece.tokens, -1))
        if at == len(room):
            packs.append([])
            left, pack = budget, len(packs) - 1
        else:
            left, pack = room.pop(at)
        packs[pack].append(piece)
        insort(room, (left - piece.tokens, pack))
    return packs


def leaf_packs(packs: list[list[Piece]], leaves: Leaves) -> IntArray:
    """i32[leaves]: the pack each leaf went to."""
    owner = np.full(len(leaves.node), -1, np.int32)
    for index, pieces in enumerate(packs):
        for piece in pieces:
            owner[piece.first : piece.last] = index
    return owner
