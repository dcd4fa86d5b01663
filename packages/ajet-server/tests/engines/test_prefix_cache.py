"""The tree returns exactly what was put in, and never holds more than it may."""

import numpy as np
import pytest
import torch
from engine_helpers import ids
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.errors import EngineFailedError
from ajet_server.engines.kv_slots import Span
from ajet_server.engines.prefix_cache import PrefixCache, common_prefix

sequences = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), max_size=12)


def keys_of(token_ids: np.ndarray) -> torch.Tensor:
    """Stands in for keys f[1, n, 1]: as with real ones, each depends on all ids up to it."""
    digits = np.cumsum((token_ids + 1) * 4.0 ** np.arange(len(token_ids)))
    return torch.from_numpy(digits)[None, :, None]


def put(cache: PrefixCache, token_ids: np.ndarray, version: int = 0) -> list[tuple[int, int]]:
    """Inserts a sequence; returns what had to be read."""
    read: list[tuple[int, int]] = []

    def reader(start: int, stop: int) -> Span:
        read.append((start, stop))
        return [keys_of(token_ids)[:, start:stop].clone()]

    cache.insert(token_ids, version, reader)
    return read


def get(cache: PrefixCache, token_ids: np.ndarray) -> torch.Tensor:
    """Returns the keys f[1, n, 1] that are kept for a beginning."""
    length, pieces = cache.match(token_ids, 0)
    joined = torch.cat([piece[0] for piece in pieces], 1) if pieces else torch.zeros(1, 0, 1)
    assert joined.shape[1] == length
    return joined


@given(sequences, st.integers(0, 30))
def test_a_match_is_a_true_beginning_and_the_bound_holds(inserted: list[list[int]], bound: int) -> None:
    cache = PrefixCache(bound)
    for item in inserted:
        put(cache, ids(*item))
        assert cache.tokens <= bound
        kept = get(cache, ids(*item))
        assert kept.shape[1] == min(len(item), bound)
        torch.testing.assert_close(kept.double(), keys_of(ids(*item))[:, : kept.shape[1]])


@given(sequences)
def test_nothing_is_kept_twice(inserted: list[list[int]]) -> None:
    cache = PrefixCache(10_000)
    for item in inserted:
        put(cache, ids(*item))
    beginnings = {tuple(item[:end]) for item in inserted for end in range(1, len(item) + 1)}
    assert cache.tokens == len(beginnings)
    for item in inserted:
        torch.testing.assert_close(get(cache, ids(*item, 7)), keys_of(ids(*item)))


def test_only_what_is_missing_is_read() -> None:
    cache = PrefixCache(100)
    assert put(cache, ids(1, 2, 3, 4)) == [(0, 4)]
    assert put(cache, ids(1, 2, 3, 4)) == []
    assert put(cache, ids(1, 2)) == []
    assert put(cache, ids(1, 2, 5)) == [(2, 3)]


def test_the_least_recently_used_end_goes_first() -> None:
    cache = PrefixCache(6)
    put(cache, ids(1, 2, 3))
    put(cache, ids(1, 2, 4))
    put(cache, ids(1, 2, 5))
    cache.match(ids(1, 2, 3), 0)
    put(cache, ids(9, 9))
    assert cache.match(ids(1, 2, 3), 0)[0] == 3
    assert cache.match(ids(1, 2, 4), 0)[0] == 2
    assert cache.match(ids(9, 9), 0)[0] == 2


def test_cleared_is_empty() -> None:
    cache = PrefixCache(6)
    put(cache, ids(1, 2, 3))
    cache.clear()
    assert (cache.tokens, cache.match(ids(1, 2, 3), 0)) == (0, (0, []))


def test_a_hit_of_another_version_is_refused() -> None:
    cache = PrefixCache(10)
    put(cache, ids(1, 2, 3), version=4)
    put(cache, ids(1, 2, 5), version=4)  # splits the first entry
    assert cache.match(ids(1, 2, 3), 4)[0] == 3
    assert cache.match(ids(7), 5)[0] == 0
    with pytest.raises(EngineFailedError, match="version 4, but version 5"):
        cache.match(ids(1, 9), 5)
    with pytest.raises(EngineFailedError, match="version 4, but version 5"):
        put(cache, ids(1, 2, 3, 4), version=5)
    cache.clear()
    put(cache, ids(1, 2, 3, 4), version=5)
    assert cache.match(ids(1, 2, 3), 5)[0] == 3


def test_common_prefix() -> None:
    assert common_prefix(ids(), ids(1)) == 0
    assert common_prefix(ids(1, 2), ids(1, 2, 3)) == 2
    assert common_prefix(ids(1, 2, 4), ids(1, 2, 3)) == 2
