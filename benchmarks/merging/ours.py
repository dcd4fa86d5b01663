"""What is measured of ajet-merge on one case, and the limits it is held against."""

from array import array
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np

from ajet_merge import Call, Forest, ModelShape, merge

from .cases import Captured, IntArray
from .clock import best_of_rounds

SHAPE = ModelShape(layers=36, hidden=4096, intermediate=12288, heads=32, kv_heads=8, head_dim=128, vocabulary=151_936)
"""Of a dense model with 8e9 parameters, for the saving in arithmetic."""

Lists = list[tuple[list[int], list[int], list[float]]]


def calls_of(captured: list[Captured]) -> list[Call]:
    """Calls from int32 and float32 arrays, which are taken as they are."""
    return [Call(call.prompt, call.completion, call.logprobs, advantage=1.0) for call in captured]


def lists_of(captured: list[Captured]) -> Lists:
    """The same as lists, every number an object of its own, as a JSON parser makes them."""
    return [(call.prompt.tolist(), call.completion.tolist(), call.logprobs.tolist()) for call in captured]


def from_lists(lists: Lists) -> list[Call]:
    """Calls from lists."""
    return [Call(prompt, completion, logprobs, advantage=1.0) for prompt, completion, logprobs in lists]


def pack_budget(captured: list[Captured]) -> int:
    """Twice the longest call."""
    return 2 * max(call.prompt.size + call.completion.size for call in captured)


def _id_lists(lists: Lists) -> list[list[int]]:
    return [ids for prompt, completion, _ in lists for ids in (prompt, completion)]


def conversions(lists: Lists) -> dict[str, Callable[[], Any]]:
    """Ways to turn lists of ids into int32 arrays, and nothing else."""
    every = _id_lists(lists)
    return {
        "array('i', list)": lambda: [array("i", ids) for ids in every],
        "numpy.array(list, int32)": lambda: [np.array(ids, np.int32) for ids in every],
        "numpy.fromiter(list, int32)": lambda: [np.fromiter(ids, np.int32, len(ids)) for ids in every],
    }


def limits(captured: list[Captured]) -> dict[str, Callable[[], Any]]:
    """Ways to read every id once where the calls have them, array by array, and do nothing else."""
    arrays = [ids for call in captured for ids in (call.prompt, call.completion)]
    pairs = [(ids.tobytes(), bytes(bytearray(ids.tobytes()))) for ids in arrays]
    return {
        "memcmp of each array with a copy": lambda: [data == copy for data, copy in pairs],
        "numpy max of each array": lambda: [ids.max(initial=0) for ids in arrays],
    }


def all_ids(captured: list[Captured]) -> IntArray:
    """i32[unmerged tokens]: every prompt and completion, one after the other."""
    return np.concatenate([ids for call in captured for ids in (call.prompt, call.completion)])


def distinct_prefixes(captured: list[Captured]) -> int:
    """How many distinct non-empty prefixes the calls have, counted without a trie.

    Sequences are sorted (big-endian bytes sort as the ids do); of each, what it shares with the one before is not new.
    """
    sequences = sorted(np.concatenate([call.prompt, call.completion]).astype(">u4").tobytes() for call in captured)
    arrays = [np.frombuffer(sequence, ">u4") for sequence in sequences]
    shared = sum(_common_prefix(a, b) for a, b in pairwise(arrays))
    return sum(array.size for array in arrays) - shared


def _common_prefix(a: Any, b: Any) -> int:
    size = min(a.size, b.size)
    different = np.flatnonzero(a[:size] != b[:size])
    return int(different[0]) if different.size else size


def merge_and_pack(calls: list[Call], budget: int) -> Any:
    """The way to a trainer with tree attention."""
    forest = merge(calls)
    return forest.occurrences, forest.packs(budget)


def rows_of(forest: Forest) -> list[Any]:
    """Rows as those peers make them that make any: ids, mask, logprobs, advantages."""
    return [(row.tokens, row.mask, row.logprobs, row.advantage) for row in forest.timelines()]


def measure(captured: list[Captured], budget_s: float) -> dict[str, Any]:
    """One case: times in microseconds and token counts. What is compared is timed in turns.

    Raises:
        AssertionError: the forest is not as large as the number of distinct prefixes.
    """
    calls, lists, pack_tokens = calls_of(captured), lists_of(captured), pack_budget(captured)
    reading, converting = limits(captured), conversions(lists)
    stream = all_ids(captured)
    best = {
        **best_of_rounds({"ours_us": lambda: merge(calls), "stream_us": stream.max, **reading}, budget_s),
        **best_of_rounds({"ours_calls_us": lambda: merge(calls_of(captured))}, budget_s),
        **best_of_rounds({"ours_packs_us": lambda: merge_and_pack(calls, pack_tokens)}, budget_s),
        **best_of_rounds({"ours_rows_us": lambda: merge(calls).timelines()}, budget_s),
        **best_of_rounds({"ours_list_us": lambda: merge(from_lists(lists)), **converting}, budget_s),
        **best_of_rounds({"ours_list_rows_us": lambda: rows_of(merge(from_lists(lists)))}, budget_s),
    }
    limit, conversion = min(reading, key=best.__getitem__), min(converting, key=best.__getitem__)
    return {
        **{name: us for name, us in _microseconds(best).items() if name.startswith("ours_")},
        "list_convert_us": best[conversion] * 1e6,
        "list_convert_by": conversion,
        "limit_us": best[limit] * 1e6,
        "limit_by": limit,
        "stream_us": best["stream_us"] * 1e6,
        **_tokens(captured, merge(calls), pack_tokens),
    }


def _microseconds(best: dict[str, float]) -> dict[str, float]:
    return {name: seconds * 1e6 for name, seconds in best.items()}


def _tokens(captured: list[Captured], forest: Forest, pack_tokens: int) -> dict[str, Any]:
    distinct = distinct_prefixes(captured)
    if forest.num_tokens != distinct:
        raise AssertionError(f"the forest has {forest.num_tokens} tokens, but there are {distinct} distinct prefixes")
    return {
        "calls": len(captured),
        "unmerged_tokens": forest.stats.tokens_unmerged,
        "linear_tokens": sum(row.tokens.size for row in forest.timelines()),
        "forest_tokens": forest.num_tokens,
        "distinct_prefixes": distinct,
        "rows": len(forest.timelines()),
        "pack_budget": pack_tokens,
        "packs_tokens": sum(pack.num_tokens for pack in forest.packs(pack_tokens)),
        "stats": asdict(forest.stats),
        "flops": asdict(forest.stats.flops(SHAPE)),
    }
