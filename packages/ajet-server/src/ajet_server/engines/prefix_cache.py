"""Keys and values of finished calls, kept for later calls that begin with the same token ids.

A radix tree: each node holds a run of ids with their keys and values, so a beginning that many calls share is kept
once. The least recently used leaf goes first. Entries are only true for the weights that computed them
(vllm-project/vllm issue 42125 shows what happens otherwise), so the tree is cleared whenever weights change; and each
entry carries the version of its weights, so that one which was left behind is an error and never a hit.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from ajet_core.errors import EngineFailedError
from ajet_server.engines.base import IntIds
from ajet_server.engines.kv_slots import Span


def common_prefix(left: IntIds, right: IntIds) -> int:
    """Returns how many ids i32[N] and i32[M] have in common at their beginning."""
    shorter = min(len(left), len(right))
    differs = left[:shorter] != right[:shorter]
    first = int(differs.argmax()) if shorter else 0
    return first if shorter and differs[first] else shorter


@dataclass(slots=True, eq=False)
class _Node:
    """A run of ids below its parent's.

    Attributes:
        ids: i32[n], n >= 1 except at the root; children start with distinct ids.
        span: keys and values of exactly these n tokens, in memory of their own (an evicted node frees its share).
        used: the tick of the last lookup or insertion that passed here; never later than the parent's.
        version: of the weights that computed the span.
    """

    ids: IntIds
    span: Span
    used: int
    version: int
    children: dict[int, "_Node"] = field(default_factory=dict[int, "_Node"])


class PrefixCache:
    """At most `max_tokens` tokens; 0 keeps nothing."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._tick = 0
        self.clear()

    @property
    def tokens(self) -> int:
        """Tokens kept now."""
        return self._tokens

    def clear(self) -> None:
        """Forgets everything."""
        self._root = _Node(np.empty(0, np.int32), [], 0, -1)
        self._tokens = 0

    def match(self, ids: IntIds, version: int) -> tuple[int, list[Span]]:
        """Returns how long a beginning of `ids` is kept, and its keys and values, piece by piece.

        Raises:
            EngineFailedError: what is kept was not computed by the weights of `version`.
        """
        self._tick += 1
        pieces: list[Span] = []
        at = 0
        for node, shared in self._walk(ids, version):
            node.used = self._tick
            pieces.append([part[:, :shared] for part in node.span])
            at += shared
        return at, pieces

    def insert(self, ids: IntIds, version: int, read: Callable[[int, int], Span]) -> None:
        """Keeps the keys and values of `ids`, as far as they fit; `read(start, stop)` copies those that are missing.

        Raises:
            EngineFailedError: a beginning that is kept was not computed by the weights of `version`.
        """
        ids = ids[: self._max_tokens]
        self._tick += 1
        parent, at = self._root, 0
        for node, shared in self._walk(ids, version):
            at += shared
            if shared < len(node.ids) and at < len(ids):
                node = _split(parent, node, shared)  # noqa: PLW2901 - the walk ends at a node that is not passed whole
            node.used = self._tick
            parent = node
        if at < len(ids):
            parent.children[int(ids[at])] = _Node(ids[at:].copy(), read(at, len(ids)), self._tick, version)
            self._tokens += len(ids) - at
        while self._tokens > self._max_tokens:
            self._evict()

    def _walk(self, ids: IntIds, version: int) -> Iterator[tuple[_Node, int]]:
        """Yields the nodes that `ids` passes through, each with how many of its ids match (at least 1)."""
        node, at = self._root, 0
        while at < len(ids):
            child = node.children.get(int(ids[at]))
            if child is None:
                return
            if child.version != version:
                raise EngineFailedError(
                    f"the prefix cache holds keys of weight version {child.version}, but version {version} is serving; "
                    "it was not cleared when the weights changed"
                )
            shared = common_prefix(child.ids, ids[at:])
            whole = shared == len(child.ids)
            yield child, shared
            if not whole:
                return
            node, at = child, at + shared

    def _evict(self) -> None:
        parent, leaf = min(self._leaves(), key=lambda found: found[1].used)
        del parent.children[int(leaf.ids[0])]
        self._tokens -= len(leaf.ids)

    def _leaves(self) -> Iterator[tuple[_Node, _Node]]:
        """Yields each leaf with its parent."""
        pending = [self._root]
        while pending:
            parent = pending.pop()
            for child in parent.children.values():
                if child.children:
                    pending.append(child)
                else:
                    yield parent, child


def _split(parent: _Node, node: _Node, at: int) -> _Node:
    """Cuts a node in two after `at` ids and returns the upper half."""
    upper = _Node(node.ids[:at].copy(), [part[:, :at].clone() for part in node.span], node.used, node.version)
    node.ids, node.span = node.ids[at:].copy(), [part[:, at:].clone() for part in node.span]
    upper.children[int(node.ids[0])] = node
    parent.children[int(upper.ids[0])] = upper
    return upper
