"""What a trie backend hands over, and the two array helpers everything after it is made of."""

from typing import NamedTuple, Protocol

import numpy as np

from ._arrays import IntArray


class Layout(NamedTuple):
    """A compressed trie in depth-first preorder, longest child first. K nodes, N tokens.

    A node is a run of tokens without a branch in it, cut also wherever a call ends. So every call ends at the end of a
    node, every token of a node has the same descendants outside it, and the K nodes tile the N tokens in order.
    """

    tokens: IntArray
    """i32[N]: the forest's token ids."""
    start: IntArray
    """i32[K]: forest index of the node's first token."""
    length: IntArray
    """i32[K]: tokens in the node, at least 1."""
    parent: IntArray
    """i32[K]: the node above, -1 at roots; always less than the node's own index."""
    depth: IntArray
    """i32[K]: tokens on the path above the node = position of its first token."""
    end: IntArray
    """i32[K]: forest index just after the last descendant."""
    call_node: IntArray
    """i32[calls]: the node each call ends with, in the order the calls were added."""


class TrieBackend(Protocol):
    """The compiled core and its Python twin. Both are exact, and independent of the order of adding."""

    def new_root(self) -> int:
        """A new tree that shares nothing with others; returns its number (0, 1, 2, ...)."""
        ...

    def add(self, prompts: list[IntArray], completions: list[IntArray], roots: list[int]) -> list[int]:
        """Insert prompt + completion of each call under its root; how many leading tokens were there already."""
        ...

    def layout(self, roots: list[int]) -> Layout:
        """The trie so far, its trees in the given order. Adding more later does not change what was returned."""
        ...


def concat_ranges(starts: IntArray, lengths: IntArray) -> IntArray:
    """`concatenate([arange(s, s + n) for s, n in zip(starts, lengths)])` as i32, without the loop."""
    before = np.cumsum(lengths, dtype=np.int32) - lengths
    ranges = np.repeat(starts - before, lengths)
    ranges += np.arange(ranges.size, dtype=np.int32)
    return ranges


def as_i32(values: list[int]) -> IntArray:
    """A list of ints as i32, also when it is empty."""
    return np.array(values, dtype=np.int32)
