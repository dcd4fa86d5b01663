"""Where two token sequences that have parted are the same again."""

from bisect import bisect_left
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ajet_merge._arrays import IntArray

WINDOW = 4
"""Tokens in the windows that are looked up. One that stands once in each sequence anchors them to each other."""
SAME_AGAIN = 16
"""So many equal tokens mean the same content; fewer may be the markers that a chat template puts around everything."""
NEAR = 512
"""So many tokens are searched first: most breaks heal soon, and then nothing further needs to be sorted."""
_ODD = np.uint64(0x9E3779B97F4A7C15)


class Run(NamedTuple):
    """Equal tokens: `ours[new : new + length] == theirs[gone : gone + length]`, as long as it can be."""

    new: int
    gone: int
    length: int

    @property
    def new_end(self) -> int:
        """Where it ends in ours."""
        return self.new + self.length

    @property
    def gone_end(self) -> int:
        """Where it ends in theirs."""
        return self.gone + self.length


def align(ours: IntArray, theirs: IntArray) -> list[Run]:
    """The runs of equal content in both, ascending and apart in both. O(n log n) comparisons.

    Windows that occur once on each side are put in the longest chain that ascends on both. Runs too short to mean
    anything are left out.
    """
    runs = _runs(_chain(ours[:NEAR], theirs[:NEAR]), ours, theirs)
    whole = ours.size <= NEAR and theirs.size <= NEAR
    if not whole and not (runs and (runs[-1].new_end == ours.size or runs[-1].gone_end == theirs.size)):
        runs = _runs(_chain(ours, theirs), ours, theirs)
    enough = min(SAME_AGAIN, (min(ours.size, theirs.size) + 1) // 2)
    return [run for run in runs if run.length >= enough or run.gone_end == theirs.size]


def equal_prefix(ours: IntArray, theirs: IntArray) -> int:
    """How many leading tokens are equal."""
    size = min(ours.size, theirs.size)
    differs = ours[:size] != theirs[:size]
    first = int(differs.argmax()) if size else 0
    return first if size and differs[first] else size


def _chain(ours: IntArray, theirs: IntArray) -> list[Run]:
    """The heaviest chain of bands. A band is what lies between the first and the last of anchors on one diagonal."""
    new, gone = _anchors(ours, theirs)
    if not new.size:
        return []
    firsts = np.flatnonzero(np.diff(gone - new, prepend=gone[0] - new[0] - 1))
    lasts = np.append(firsts[1:], new.size) - 1
    lengths = new[lasts] - new[firsts] + WINDOW
    kept = heaviest_chain(gone[firsts], gone[lasts], lasts - firsts + WINDOW)
    return [Run(int(new[firsts[at]]), int(gone[firsts[at]]), int(lengths[at])) for at in kept]


def _anchors(ours: IntArray, theirs: IntArray) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where the windows begin that stand exactly once in each, ascending in ours."""
    hashes = np.concatenate([_hashes(ours), _hashes(theirs)])
    border = max(ours.size - WINDOW + 1, 0)
    order = np.argsort(hashes)
    starts = np.flatnonzero(np.diff(hashes[order], prepend=0)) if hashes.size else order
    pairs = starts[np.diff(starts, append=hashes.size) == 2]
    one, other = order[pairs], order[pairs + 1]
    new, gone = np.minimum(one, other), np.maximum(one, other) - border
    across = (new < border) & (gone >= 0)
    new, gone = new[across], gone[across]
    for step in range(WINDOW):  # equal hashes are not yet equal tokens
        same = ours[new + step] == theirs[gone + step]
        new, gone = new[same], gone[same]
    ascending = np.argsort(new)
    return new[ascending], gone[ascending]


def _hashes(ids: IntArray) -> NDArray[np.uint64]:
    """u64[n - WINDOW + 1]: a hash of each window, never 0."""
    count = max(ids.size - WINDOW + 1, 0)
    wide = ids.astype(np.uint64) + np.uint64(1)
    hashes = np.zeros(count, np.uint64)
    for step in range(WINDOW):
        hashes = (hashes + wide[step : step + count]) * _ODD  # wraps around, as a hash may
    return hashes | np.uint64(1)


def heaviest_chain(first: NDArray[np.intp], last: NDArray[np.intp], weight: NDArray[np.intp]) -> list[int]:
    """Indices of the bands of the heaviest chain that ascends in theirs too. O(n log n) comparisons.

    Args:
        first: where each band begins in theirs; the bands ascend in ours.
        last: where its last anchor is in theirs.
        weight: what it counts.
    """
    best, before = weight.tolist(), [-1] * weight.size
    # The chains worth going on from: each ends further on than the one in front of it, and is heavier.
    ends, tips = list[int](), list[int]()
    for at, (begin, end) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        if ended := bisect_left(ends, begin):
            before[at] = tips[ended - 1]
            best[at] += best[before[at]]
        place = bisect_left(ends, end)
        if place and best[tips[place - 1]] >= best[at]:
            continue
        over = place
        while over < len(tips) and best[tips[over]] <= best[at]:
            over += 1
        ends[place:over], tips[place:over] = [end], [at]
    chain = [max(range(len(best)), key=best.__getitem__)]
    while before[chain[-1]] >= 0:
        chain.append(before[chain[-1]])
    return chain[::-1]


def _runs(bands: list[Run], ours: IntArray, theirs: IntArray) -> list[Run]:
    """What is equal in the bands, each widened as far as the next to it, and the last to the end."""
    runs, last = list[Run](), Run(0, 0, 0)
    for at, band in enumerate(bands):
        overlap = max(last.new_end - band.new, last.gone_end - band.gone, 0)
        new, gone = band.new + overlap, band.gone + overlap
        back = equal_prefix(ours[last.new_end : new][::-1], theirs[last.gone_end : gone][::-1])
        new, gone = new - back, gone - back
        end = band.new_end
        if at + 1 == len(bands):
            end = min(ours.size, new + theirs.size - gone)
        else:
            end += equal_prefix(ours[end : bands[at + 1].new], theirs[band.gone_end : bands[at + 1].gone])
        runs += _equal_parts(ours, theirs, Run(new, gone, max(end - new, 0)))
        last = Run(new, gone, max(end - new, 0))
    return runs


def _equal_parts(ours: IntArray, theirs: IntArray, band: Run) -> list[Run]:
    """The runs of at least WINDOW equal tokens on the diagonal of a band."""
    same = ours[band.new : band.new_end] == theirs[band.gone : band.gone_end]
    edges = np.diff(same.astype(np.int8), prepend=0, append=0)
    starts, ends = np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist()
    parts = zip(starts, ends, strict=True)
    return [Run(band.new + start, band.gone + start, end - start) for start, end in parts if end - start >= WINDOW]
