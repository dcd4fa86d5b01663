import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.quotas import quotas


@given(st.lists(st.integers(1, 100), min_size=1, max_size=6), st.integers(1, 200))
def test_they_add_up_and_none_is_off_by_one(weights: list[int], size: int) -> None:
    shares = {str(at): weight / sum(weights) for at, weight in enumerate(weights)}
    found = quotas(shares, size)
    assert sum(found.values()) == size
    assert all(abs(found[name] - share * size) < 1 for name, share in shares.items())


@pytest.mark.parametrize(
    ("shares", "size", "found"),
    [
        ({"a": 0.5, "b": 0.5}, 4, {"a": 2, "b": 2}),
        ({"a": 0.5, "b": 0.5}, 5, {"a": 3, "b": 2}),
        ({"a": 0.29, "b": 0.71}, 100, {"a": 29, "b": 71}),
        ({"a": 0.1, "b": 0.3, "c": 0.6}, 3, {"a": 0, "b": 1, "c": 2}),
    ],
)
def test_examples(shares: dict[str, float], size: int, found: dict[str, int]) -> None:
    assert quotas(shares, size) == found
