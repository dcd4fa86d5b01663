"""What must hold of everything made from a merge, and of merging in other ways: dear, so only for some merges."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from checks import check_forest, require
from families import LISTS_UP_TO, Family, Generator, Sample

from ajet_merge import Call, Forest, Pack, PathTooLongError, Timeline, Tracker, _scan, _scan_py, merge
from ajet_merge._forest import Trie
from ajet_merge._forest_py import Trie as TwinTrie
from ajet_merge._layout import Layout

EXPLAIN_UP_TO = 5000


def check_everything(family: Family, samples: Sequence[Sample], forest: Forest, rng: Generator) -> None:
    """All that `check_forest` leaves out, for one merge.

    Args:
        family: the family the samples are from.
        samples: what was merged, in this order; at least one.
        forest: what came out.
        rng: draws orders, chunks and budgets.

    Raises:
        Failure: a property does not hold.
    """
    for index, sample in enumerate(samples):
        require(np.array_equal(forest.tokens[forest.path(index)], sample.sequence), "path() is not the call's path")
    require(forest.stats.excluded == sum(sample.call.excluded for sample in samples), "stats.excluded is wrong")
    _check_twin(samples)
    _check_tracker(samples, forest, rng)
    _check_order(family, samples, forest, rng)
    _check_timelines(forest)
    _check_packs(forest, rng)
    if sum(sample.sequence.size for sample in samples) <= EXPLAIN_UP_TO:
        _check_departures(forest)


def _check_twin(samples: Sequence[Sample]) -> None:
    calls = [sample.call for sample in samples]
    keys = sorted({call.compat_key for call in calls})
    results: list[tuple[list[int], list[bytes]]] = []
    for trie in (Trie(), TwinTrie()):
        roots = [trie.new_root() for _ in keys]
        arrays = [call.prompt_ids for call in calls], [call.completion_ids for call in calls]
        shared = trie.add(*arrays, [roots[keys.index(call.compat_key)] for call in calls])
        results.append((shared, _content(trie.layout(roots))))
    require(results[0] == results[1], "the compiled trie and its twin differ")
    for call in calls:
        require(_scanned(_scan, call) == _scanned(_scan_py, call), "the compiled scan and its twin differ")


def _scanned(scan: Any, call: Call) -> tuple[int, int, Any]:
    packed = scan.packed_ids(call.prompt_ids[:LISTS_UP_TO].tolist())
    return scan.first_negative(call.prompt_ids), scan.first_not_finite(call.logprobs), packed.tolist()


def _content(layout: Layout) -> list[bytes]:
    return [array.tobytes() for array in layout]


def _check_tracker(samples: Sequence[Sample], forest: Forest, rng: Generator) -> None:
    """Adding in pieces: the shared lengths are right, and the forest is that of the batch."""
    tracker, start, shared = Tracker(), 0, list[int]()
    while start < len(samples):
        stop = int(rng.integers(start + 1, len(samples) + 1))
        shared += tracker.add_all([sample.call for sample in samples[start:stop]])
        if rng.integers(2):
            tracker.forest()
        start = stop
    require(shared == _shared_lengths(samples), "add() does not return the length of the shared prefix")
    require(_content(tracker.forest().layout) == _content(forest.layout), "adding one by one gives another forest")


def _shared_lengths(samples: Sequence[Sample]) -> list[int]:
    """How many of each call's prefixes earlier calls have; those are always its first ones."""
    seen = np.zeros(1 + max(int(sample.prefixes.max()) for sample in samples), np.bool_)
    lengths: list[int] = []
    for sample in samples:
        lengths.append(int(np.count_nonzero(seen[sample.prefixes])))
        seen[sample.prefixes] = True
    return lengths


def _check_order(family: Family, samples: Sequence[Sample], forest: Forest, rng: Generator) -> None:
    """Another order, and every call twice: the same tokens in the same places, and every call's occurrences."""
    order: list[int] = rng.permutation(len(samples)).tolist()
    for indices in (order, [*range(len(samples)), *order]):
        chosen = [samples[index] for index in indices]
        other = merge([sample.call for sample in chosen])
        check_forest(family, chosen, other)
        one, two = _content(forest.layout), _content(other.layout)
        require(one[:-1] == two[:-1], "another order or a repetition gives another forest")
        ends = np.array_equal(other.layout.call_node, forest.layout.call_node[indices])
        require(ends, "in another order a call ends elsewhere")


def _check_timelines(forest: Forest) -> None:
    """Every call and every occurrence is in exactly one row, at its place."""
    rows = forest.timelines()
    require(_flat([row.calls for row in rows]) == list(range(len(forest.calls))), "a call is not in exactly one row")
    trained = np.sort(np.concatenate([row.occurrences for row in rows]))
    require(np.array_equal(trained, np.arange(len(forest.occurrences))), "an occurrence is not in exactly one row")
    for row in rows:
        _check_row(forest, row)


def _flat(parts: Sequence[Sequence[int]]) -> list[int]:
    return sorted(item for part in parts for item in part)


def _check_row(forest: Forest, row: Timeline) -> None:
    found, own = forest.occurrences, row.occurrences
    require(np.array_equal(forest.tokens[row.path], row.tokens), "a row's tokens are not its path's")
    for call in row.calls:
        path = forest.path(call)
        require(np.array_equal(path, row.path[: path.size]), "a row does not hold its calls")
    require((np.diff(row.positions) > 0).all(), "a row trains one position twice")
    require(np.array_equal(row.path[row.positions], found.token[own]), "a row trains at other positions")
    require(set(found.call[own].tolist()) <= set(row.calls), "a row trains calls that are not its own")
    require(np.array_equal(np.flatnonzero(row.mask), row.positions), "a row's mask is not its positions")
    for name, values in (("logprobs", found.logprob), ("advantage", found.advantage), ("weight", found.weight)):
        spread = np.zeros(row.tokens.size, np.float32)
        spread[row.positions] = values[own]
        require(getattr(row, name).tobytes() == spread.tobytes(), f"a row's {name} is not its occurrences'")


def _check_packs(forest: Forest, rng: Generator) -> None:
    """Packs partition the occurrences and the calls, within the budget; a smaller budget is refused."""
    training = np.unique(forest.occurrences.call).tolist()
    longest = max((len(forest.calls[call]) for call in training), default=0)
    budget, ranks = int(rng.integers(max(longest, 2), longest + forest.num_tokens + 3)), int(rng.integers(1, 4))
    packs = forest.packs(budget, ranks=ranks)
    require(bool(packs) == bool(training), "there are packs without occurrences, or occurrences without packs")
    if not packs:
        return
    real = [pack for pack in packs if not pack.is_dummy]
    require(len(packs) % ranks == 0 and len(packs) - len(real) < ranks, "ranks get different numbers of packs")
    placed = np.sort(np.concatenate([pack.occ_index for pack in real]))
    require(np.array_equal(placed, np.arange(len(forest.occurrences))), "packs do not partition the occurrences")
    homes = [np.unique(forest.occurrences.call[pack.occ_index]) for pack in real]
    require(np.unique(np.concatenate(homes)).size == sum(home.size for home in homes), "a call is split between packs")
    for pack in packs:
        require(pack.num_tokens <= budget, "a pack exceeds its budget")
    for pack in real:
        _check_pack(forest, pack)
    _check_too_small(forest, longest - 1)


def _check_pack(forest: Forest, pack: Pack) -> None:
    index, found = pack.forest_index, forest.occurrences
    require(np.array_equal(forest.tokens[index], pack.tokens), "a pack has other tokens")
    require(np.array_equal(forest.pos[index], pack.pos), "a pack has other positions")
    above = np.where(pack.parent >= 0, index[pack.parent], -1)
    require(np.array_equal(above, forest.parent[index]), "a pack has other parents")
    require(np.array_equal(index[pack.occ_token], found.token[pack.occ_index]), "a pack trains other tokens")
    require(np.array_equal(pack.occ_predictor, pack.parent[pack.occ_token]), "a predictor is not the token before")
    require(np.array_equal(pack.occ_target, pack.tokens[pack.occ_token]), "a target is not the trained token")
    for name in ("logprob", "advantage", "weight"):
        expected = getattr(found, name)[pack.occ_index].tobytes()
        require(getattr(pack, name).tobytes() == expected, f"a pack's {name} is not its occurrences'")
    keys = np.add.reduceat(pack.kv_run_len, pack.kv_ptr[:-1])
    require(np.array_equal(keys, np.diff(pack.cu_seqlens_k)), "runs of keys and cu_seqlens_k differ")
    require(np.array_equal(keys, pack.pos[pack.seg_start[1:] - 1] + 1), "a segment's keys are not its last path")


def _check_too_small(forest: Forest, budget: int) -> None:
    if budget < 2:
        return
    try:
        forest.packs(budget)
    except PathTooLongError as error:
        require(forest.calls[error.call_index].call_id in str(error), "the refusal does not name the call")
    else:
        require(False, "a pack was made that cannot hold its calls")


def _check_departures(forest: Forest) -> None:
    for found in forest.explain().departures:
        call = forest.calls[found.call]
        require(0 <= found.shared < len(call), "a departure is beyond its call")
        require(0 <= found.earlier < found.call, "a departure is from a later call")
