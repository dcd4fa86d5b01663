"""The trie in plain Python: the readable twin of `_forest.pyx`, with the same results to the last bit."""

from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from ._arrays import IntArray
from ._layout import Layout, as_i32


@dataclass(eq=False)
class Node:
    """A run of tokens. `children` is keyed by their first token, so no two children can start alike."""

    tokens: IntArray
    depth: int
    parent: "Node | None"
    children: "dict[int, Node]" = field(default_factory=dict[int, "Node"])
    height: int = 0  # tokens from here to the deepest leaf, the node's own included; set by `layout`
    index: int = -1  # place in preorder; set by `layout`

    def split(self, parent: "Node", at: int) -> "Node":
        """Put a new node with the first `at` tokens between this one and its parent, and return it.

        This object stays the lower part, so whoever remembers it as the end of a call stays right.
        """
        upper = Node(self.tokens[:at], self.depth, parent)
        parent.children[int(self.tokens[0])] = upper
        self.tokens, self.depth, self.parent = self.tokens[at:], self.depth + at, upper
        upper.children[int(self.tokens[0])] = self
        return upper

    def add_leaf(self, tokens: IntArray) -> "Node":
        """Hang a new leaf below this node."""
        leaf = Node(tokens, self.depth + len(self.tokens), self)
        self.children[int(tokens[0])] = leaf
        return leaf


class Trie:
    """See `TrieBackend`."""

    def __init__(self) -> None:
        self._roots: list[Node] = []
        self._call_nodes: list[Node] = []

    def new_root(self) -> int:
        self._roots.append(Node(as_i32([]), 0, None))
        return len(self._roots) - 1

    def add(self, prompts: list[IntArray], completions: list[IntArray], roots: list[int]) -> list[int]:
        return [
            self._add_one(np.concatenate([prompt, completion]), self._roots[root])
            for prompt, completion, root in zip(prompts, completions, roots, strict=True)
        ]

    def _add_one(self, sequence: IntArray, node: Node) -> int:
        shared = 0
        while shared < len(sequence):
            child = node.children.get(int(sequence[shared]))
            if child is None:
                node = node.add_leaf(sequence[shared:])
                break
            common = common_prefix(sequence[shared:], child.tokens)
            shared += common
            node = child if common == len(child.tokens) else child.split(node, common)
        self._call_nodes.append(node)
        return shared

    def layout(self, roots: list[int]) -> Layout:
        nodes = [node for root in roots for node in preorder(self._roots[root])]
        for index, node in enumerate(nodes):
            node.index = index
        lengths = [len(node.tokens) for node in nodes]
        starts = list(accumulate(lengths, initial=0))[:-1]
        ends = [start + length for start, length in zip(starts, lengths, strict=True)]
        parents = [-1 if node.parent is None or node.parent.parent is None else node.parent.index for node in nodes]
        for index in range(len(nodes) - 1, -1, -1):  # children come after their parent
            if parents[index] >= 0:
                ends[parents[index]] = max(ends[parents[index]], ends[index])
        return Layout(
            tokens=np.concatenate([as_i32([]), *(node.tokens for node in nodes)]),
            start=as_i32(starts),
            length=as_i32(lengths),
            parent=as_i32(parents),
            depth=as_i32([node.depth for node in nodes]),
            end=as_i32(ends),
            call_node=as_i32([node.index for node in self._call_nodes]),
        )


def common_prefix(a: IntArray, b: IntArray) -> int:
    """How many leading tokens two sequences share."""
    shorter = min(len(a), len(b))
    different = a[:shorter] != b[:shorter]
    return int(different.argmax()) if different.any() else shorter


def preorder(root: Node) -> list[Node]:
    """All nodes below `root`, each before its children, the child with the longest path first.

    Equal lengths are ordered by first token, which siblings never share: the order depends on the content alone.
    """
    _set_heights(root)
    nodes: list[Node] = []
    stack = [root]
    while stack:
        node = stack.pop()
        nodes.append(node)
        stack += sorted(node.children.values(), key=lambda child: (child.height, -int(child.tokens[0])))
    return nodes[1:]  # a root itself holds no token


def _set_heights(root: Node) -> None:
    order = [root]
    for node in order:  # grows while it is read: breadth first
        order += node.children.values()
    for node in reversed(order):
        node.height = len(node.tokens) + max((child.height for child in node.children.values()), default=0)
