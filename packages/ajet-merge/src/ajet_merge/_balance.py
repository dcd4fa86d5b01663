"""Balanced number partitioning: packs over ranks."""

import heapq
from collections.abc import Sequence

Part = tuple[float, list[int]]
"""The cost of a part, and the items in it."""


def balance(costs: Sequence[float], ranks: int) -> list[list[int]]:
    """Split items into `ranks` parts of equal size whose costs are as equal as the largest differencing method gets.

    Karmarkar and Karp, "The differencing method of set partitioning" (1982), in the balanced form of Michiels et al.,
    "Performance ratios for the differencing method" (2003): start from groups of `ranks` items of like cost, one
    for each part, and join the two groups of largest spread, the dear parts of one with the cheap parts of the other.

    Args:
        costs: one cost for each item; their number must be a multiple of `ranks`.
        ranks: number of parts.

    Returns:
        For each part the indices of its items, dearest first; the dearest part first.
    """
    order = sorted(range(len(costs)), key=lambda item: (-costs[item], item))
    heap: list[tuple[float, int, list[Part]]] = []
    for number, first in enumerate(range(0, len(order), ranks)):
        parts: list[Part] = [(costs[item], [item]) for item in order[first : first + ranks]]
        heapq.heappush(heap, (-_spread(parts), number, parts))
    number = len(heap)
    while len(heap) > 1:
        (_, _, one), (_, _, other) = heapq.heappop(heap), heapq.heappop(heap)
        joined = [(a + b, left + right) for (a, left), (b, right) in zip(one, reversed(other), strict=True)]
        joined.sort(key=lambda part: (-part[0], part[1]))
        heapq.heappush(heap, (-_spread(joined), number, joined))
        number += 1
    parts = heap[0][2] if heap else [(0.0, list[int]()) for _ in range(ranks)]
    return [sorted(items, key=lambda item: (-costs[item], item)) for _, items in parts]


def _spread(parts: list[Part]) -> float:
    return parts[0][0] - parts[-1][0]
