"""The arrays of this package by their types, and read-only views of them."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int32]
FloatArray: TypeAlias = NDArray[np.float32]
MaskArray: TypeAlias = NDArray[np.uint8]
BoolArray: TypeAlias = NDArray[np.bool_]
AnyArray: TypeAlias = NDArray[Any]

MAX_ID = 2**31 - 1
"""The largest token id."""


def frozen(given: AnyArray, dtype: type[Any]) -> NDArray[Any]:
    """A read-only view of `given` if its dtype and layout are right already, else of a copy."""
    if not (given.dtype == dtype and given.flags.c_contiguous and given.flags.aligned):
        given = np.require(given, dtype, ["C", "A"])
    view = given.view()
    view.flags.writeable = False
    return view
