"""Linear rows: for trainers that run one sequence after another, without tree attention."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ._arrays import FloatArray, IntArray, MaskArray
from .call import Call
from .occurrences import Occurrences

if TYPE_CHECKING:
    from .forest import Forest


@dataclass(frozen=True, eq=False, slots=True)
class Timeline:
    """One linear row of n tokens and the calls it trains.

    Every call is owned by exactly one row, and its path is a prefix of that row. No token of a row is trained twice,
    so a row can carry one logprob, advantage and weight for each position; where two calls train the same token
    there is a second row.

    Attributes:
        tokens: i32[n].
        path: i32[n], forest indices of the tokens.
        calls: indices of the calls owned, in ascending order.
        occurrences: i32[m], indices into `Forest.occurrences`, by position in the row.
        positions: i32[m], position in the row of each of these occurrences; strictly ascending, all >= 1.
        context_exact: whether that holds for every call owned (see `Call.context_exact`).
    """

    tokens: IntArray
    path: IntArray
    calls: tuple[int, ...]
    occurrences: IntArray
    positions: IntArray
    context_exact: bool
    _source: Occurrences

    @property
    def mask(self) -> MaskArray:
        """u8[n], made anew: 1 where the row trains the token."""
        mask = np.zeros(self.tokens.size, np.uint8)
        mask[self.positions] = 1
        return mask

    @property
    def logprobs(self) -> FloatArray:
        """f32[n], made anew: the rollout's logprob of each trained token, 0 elsewhere."""
        return self._dense(self._source.logprob)

    @property
    def advantage(self) -> FloatArray:
        """f32[n], made anew: of each trained token, 0 elsewhere."""
        return self._dense(self._source.advantage)

    @property
    def weight(self) -> FloatArray:
        """f32[n], made anew: of each trained token, 0 elsewhere."""
        return self._dense(self._source.weight)

    def _dense(self, of_occurrences: FloatArray) -> FloatArray:
        dense = np.zeros(self.tokens.size, np.float32)
        dense[self.positions] = of_occurrences[self.occurrences]
        return dense


Runs = tuple[tuple[int, int], ...]
"""Half-open [from, to) intervals of positions, ascending and apart."""


@dataclass(eq=False)
class _Row:
    """A row while it is being filled: the calls on it, longest first, and the positions they train."""

    calls: list[int] = field(default_factory=list[int])
    runs: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    first: int = 2**31
    """The first position trained so far: all that matters unless a mask has holes."""

    def accepts(self, runs: Runs) -> bool:
        if not runs or runs[-1][1] <= self.first:
            return True
        return not any(a < other_b and other_a < b for a, b in runs for other_a, other_b in self.runs)

    def take(self, call: int, runs: Runs) -> None:
        self.calls.append(call)
        self.runs += runs
        self.first = min(self.first, runs[0][0]) if runs else self.first


def find_rows(forest: "Forest") -> list[list[int]]:
    """As few rows as possible, with each call in one of them; for each row its calls, the longest first.

    Nodes are taken from the leaves up. The rows that pass through a node are those opened below it; a call that ends at
    the node joins the first of them that trains none of its tokens, and only if there is none does it open a row. As in
    the colouring of intervals by their end, this is minimal whenever each call trains one run of tokens up to its end,
    or no two calls train the same token. With other masks the problem is colouring of general graphs, and the rows are
    still exact, but may not be the fewest.
    """
    below: dict[int, list[list[_Row]]] = defaultdict(list)
    kinds = _calls_by_node(forest)
    opened: list[_Row] = []
    for node in range(forest.layout.start.size - 1, -1, -1):  # children come after their parent, the longest first
        rows = _joined(below.pop(node, []))
        for runs, calls in sorted(kinds.get(node, {}).items()):
            fresh = _assign(rows, runs, calls)
            rows += fresh
            opened += fresh
        below[int(forest.layout.parent[node])].append(rows)
    return [row.calls for row in opened]


def _joined(parts: list[list[_Row]]) -> list[_Row]:
    """The rows below all children in one list, those of the first child first.

    That child's own list is grown: along a trunk with many short branches a row is then moved once, not at every node.
    """
    if not parts:
        return []
    rows = parts.pop()  # children come from the last to the first
    for part in reversed(parts):
        rows += part
    return rows


def build_timelines(forest: "Forest", rows: list[list[int]]) -> list[Timeline]:
    """The rows as arrays, in the order of the forest."""
    bounds = np.searchsorted(forest.occurrences.call, np.arange(len(forest.calls) + 1)).tolist()
    timelines = [_timeline(forest, calls, bounds) for calls in rows]
    return sorted(timelines, key=lambda row: (int(row.path[-1]), row.calls))


def _calls_by_node(forest: "Forest") -> dict[int, dict[Runs, list[int]]]:
    """For each node where calls end: the calls, grouped by the positions they train."""
    kinds: dict[int, dict[Runs, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, node in enumerate(forest.layout.call_node.tolist()):
        kinds[node][_trained_runs(forest.calls[index])].append(index)
    return kinds


def _trained_runs(call: Call) -> Runs:
    """The positions a call trains, as runs."""
    if call.mask.all():  # by far the commonest
        first, end = max(call.prompt_ids.size, 1), len(call)
        return ((first, end),) if first < end else ()
    edges = np.diff(call.trained.astype(np.int8), prepend=0, append=0)
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    offset = call.prompt_ids.size
    return tuple(zip((starts + offset).tolist(), (ends + offset).tolist(), strict=True))


def _assign(rows: list[_Row], runs: Runs, calls: list[int]) -> list[_Row]:
    """Put calls that train the same positions on different rows; returns the rows that had to be opened."""
    if not runs:  # nothing trained: they can all share one
        fresh = [] if rows else [_Row()]
        (rows + fresh)[0].calls.extend(calls)
        return fresh
    waiting = calls[::-1]
    for row in rows:
        if not waiting:
            break
        if row.accepts(runs):
            row.take(waiting.pop(), runs)
    fresh = [_Row() for _ in waiting]
    for row in fresh:
        row.take(waiting.pop(), runs)
    return fresh


def _timeline(forest: "Forest", calls: list[int], bounds: list[int]) -> Timeline:
    path = forest.path(calls[0])  # rows are opened by their longest call
    own = np.concatenate([np.arange(bounds[call], bounds[call + 1], dtype=np.int32) for call in calls])
    positions = forest.pos[forest.occurrences.token[own]]
    order = np.argsort(positions)
    return Timeline(
        tokens=forest.tokens[path],
        path=path,
        calls=tuple(sorted(calls)),
        occurrences=own[order],
        positions=positions[order],
        context_exact=all(forest.calls[call].context_exact for call in calls),
        _source=forest.occurrences,
    )
