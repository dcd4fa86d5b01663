"""What must hold after every merge. Each check raises a `Failure` that says what does not."""

import sys
from collections.abc import Sequence

import numpy as np
from families import Family, IntArray, Sample

from ajet_merge import Forest

WALK_UP_TO = 200
"""Paths of at most so many tokens are walked in Python, which takes less time than a few calls of numpy."""


class Failure(Exception):  # noqa: N818  # it is what this program looks for, not an error of it
    """A property that does not hold."""


def require(holds: bool | np.bool_, what: str) -> None:
    """Raise a `Failure` unless it holds."""
    if not holds:
        raise Failure(what)


def check_forest(family: Family, samples: Sequence[Sample], forest: Forest) -> None:
    """Paths, size, ancestors and occurrences: cheap enough for every merge.

    Args:
        family: the family the samples are from.
        samples: what was merged, in this order; at least one.
        forest: what came out.

    Raises:
        Failure: a property does not hold.
    """
    prefixes = _check_paths(samples, forest)
    seen = np.zeros(family.tokens.size, np.bool_)
    seen[prefixes] = True
    require(np.count_nonzero(seen) == forest.num_tokens, "two forest tokens stand for one prefix")
    require(_equal(family.tokens[prefixes], forest.tokens), "a forest token is not the end of its prefix")
    _check_subtrees(forest)
    _check_occurrences(samples, forest, prefixes)


def _check_paths(samples: Sequence[Sample], forest: Forest) -> IntArray:
    """Every call is its path, and every forest token is one prefix; returns the number of each token's prefix."""
    numbers = [-1] * forest.num_tokens
    tables = forest.tokens.tolist(), forest.parent.tolist(), forest.pos.tolist()
    table = forest.layout
    last = (table.start + table.length - 1)[table.call_node].tolist()
    for sample, token in zip(samples, last, strict=True):
        if sample.sequence.size <= WALK_UP_TO:
            _walk_up(sample, token, tables, numbers)
    prefixes = np.array(numbers, np.int32)
    for index, sample in enumerate(samples):
        if sample.sequence.size > WALK_UP_TO:
            _claim_path(sample, forest.path(index), forest, prefixes)
    require(prefixes.min() >= 0, "a forest token belongs to no call")
    return prefixes


def _equal(one: IntArray, other: IntArray) -> bool:
    """The same dtype and content, told faster for short arrays than by numpy."""
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


def _walk_up(sample: Sample, token: int, tables: tuple[list[int], list[int], list[int]], numbers: list[int]) -> None:
    tokens, parent, pos = tables
    ids, prefixes = sample.sequence.tolist(), sample.prefixes.tolist()
    for at in range(len(ids) - 1, -1, -1):
        if token < 0 or tokens[token] != ids[at] or pos[token] != at or numbers[token] not in (-1, prefixes[at]):
            raise Failure(f"{sample.call.call_id}: the path is not the call's at position {at}")
        numbers[token] = prefixes[at]
        token = parent[token]
    require(token == -1, f"{sample.call.call_id}: the path does not begin at a root")


def _claim_path(sample: Sample, path: IntArray, forest: Forest, prefixes: IntArray) -> None:
    name = sample.call.call_id
    require(np.array_equal(forest.tokens[path], sample.sequence), f"{name}: the path has other tokens")
    require(np.array_equal(forest.pos[path], np.arange(path.size)), f"{name}: pos is not the place in the path")
    above = np.concatenate([np.array([-1]), path[:-1]])
    require(np.array_equal(forest.parent[path], above), f"{name}: the path does not follow parent")
    before = prefixes[path]
    require(((before == -1) | (before == sample.prefixes)).all(), f"{name}: a token stands for two prefixes")
    prefixes[path] = sample.prefixes


def _check_subtrees(forest: Forest) -> None:
    """`k <= q < subtree_end[k]` exactly when k is q or an ancestor, told from `parent` alone."""
    parent, count = forest.parent, forest.num_tokens
    index = np.arange(count, dtype=np.int32)
    ends = np.full(count, count, np.int32)
    for branch in (parent != index - 1).nonzero()[0][::-1].tolist():
        ends[parent[branch] + 1 : branch] = branch  # all that came after its parent ends where it begins
    require(_equal(forest.subtree_end, ends), "subtree_end is not the end of the descendants")
    require((parent < index).all(), "a token stands before its parent")
    require(
        (index < ends[parent]).all(), "tokens do not stand in preorder"
    )  # above roots stands the last: it ends last


def _check_occurrences(samples: Sequence[Sample], forest: Forest, prefixes: IntArray) -> None:
    """Complete, in order, and equal to the last bit."""
    found = forest.occurrences
    expected = {
        "call": b"".join([index.to_bytes(4, sys.byteorder) * sample.trained for index, sample in enumerate(samples)]),
        "t": b"".join([sample.t for sample in samples]),
        "logprob": b"".join([sample.logprob for sample in samples]),
        "advantage": b"".join([sample.advantage for sample in samples]),
        "weight": b"".join([sample.weight for sample in samples]),
    }
    for name, content in expected.items():
        require(getattr(found, name).tobytes() == content, f"occurrences.{name} is not the calls'")
    trained = b"".join([sample.trained_prefixes for sample in samples])
    require(prefixes[found.token].tobytes() == trained, "occurrences.token is not the trained token")
