"""One pass over what a call is made of, in plain Python: the readable twin of `_scan.pyx`, with the same answers."""

from typing import Any

import numpy as np

from ._arrays import MAX_ID, FloatArray, IntArray


def first_negative(ids: IntArray) -> int:
    """Index of the first negative number of i32[n]; -1 if there is none."""
    negative = ids < 0
    return int(negative.argmax()) if negative.any() else -1


def first_not_finite(numbers: FloatArray) -> int:
    """Index of the first NaN or infinity of f32[n]; -1 if there is none."""
    finite = np.isfinite(numbers)
    return -1 if finite.all() else int(finite.argmin())


def packed_ids(values: list[Any]) -> IntArray | None:
    """A list of ints in 0..2**31-1 as i32[n]; None if anything else is in it."""
    good = all(type(value) is int and 0 <= value <= MAX_ID for value in values)
    return np.array(values, np.int32) if good else None
