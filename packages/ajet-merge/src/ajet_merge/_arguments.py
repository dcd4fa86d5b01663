"""Checks of plain arguments, which name the argument, its value and what would be right."""

import math
from typing import Any

import numpy as np

from .errors import MergeError


def integer(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """`value` as an int.

    Raises:
        MergeError: not an integer, or outside of `least`..`most`.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise MergeError(f"{name}={value!r}: must be an integer")
    if least is not None and value < least:
        raise MergeError(f"{name}={value}: must be at least {least}")
    if most is not None and value > most:
        raise MergeError(f"{name}={value}: must be at most {most}")
    return int(value)


def cost(name: str, value: Any) -> float:
    """`value` as a float that is finite and not negative.

    Raises:
        MergeError: it is none.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise MergeError(f"{name}={value!r}: must be a finite number, at least 0")
    return float(value)
