"""The passes over ids and numbers: every position, every length around the lanes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_merge import _backend

INT = st.integers(-(2**31), 2**31 - 1)


@given(st.lists(INT, max_size=70))
def test_the_first_negative_is_found(values: list[int]) -> None:
    expected = next((at for at, value in enumerate(values) if value < 0), -1)
    assert _backend.scan.first_negative(np.array(values, np.int32)) == expected


@pytest.mark.parametrize("size", [*range(1, 36), 5000])
def test_a_single_negative_is_found_wherever_it_is(size: int) -> None:
    for at in {*range(min(size, 40)), size - 1}:
        ids = np.full(size, 2**31 - 1, np.int32)
        assert _backend.scan.first_negative(ids) == -1
        ids[at] = -1
        assert _backend.scan.first_negative(ids) == at


@given(st.lists(st.floats(width=32), max_size=40))
def test_the_first_that_is_not_finite_is_found(values: list[float]) -> None:
    expected = next((at for at, value in enumerate(values) if not np.isfinite(value)), -1)
    assert _backend.scan.first_not_finite(np.array(values, np.float32)) == expected


@given(st.lists(st.one_of(st.integers(0, 2**31 - 1), st.integers(), st.booleans(), st.floats(), st.none()), max_size=9))
def test_lists_of_ids_are_packed_if_all_are_ids(values: list[object]) -> None:
    packed = _backend.scan.packed_ids(values)
    if all(type(value) is int and 0 <= value < 2**31 for value in values):
        assert packed is not None
        assert packed.dtype == np.int32
        assert packed.tolist() == values
    else:
        assert packed is None
