"""Checks of arguments, which name the argument, its value and what would be right."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from .call import Call
from .errors import MergeError
from .messages import Context


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


def checked_calls(calls: Iterable[Call]) -> list[Call]:
    """The calls as a list; `MergeError` if one is none."""
    if not isinstance(calls, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise MergeError(f"calls is a {type(calls).__name__}; give a sequence of ajet_merge.Call")
    calls = list(calls)
    if set(map(type, calls)) <= {Call}:
        return calls
    for index, call in enumerate(calls):
        if not isinstance(call, Call):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise MergeError(f"calls[{index}] is a {type(call).__name__}; wrap it in ajet_merge.Call")
    return calls


def checked_contexts(contexts: Iterable[Context | None], calls: int) -> list[Context | None]:
    """The contexts as a list; `MergeError` if it is not one, or None, for each call."""
    contexts = list(contexts)
    if len(contexts) != calls:
        raise MergeError(f"contexts holds {len(contexts)} items for {calls} calls; give one, or None, for each call")
    for index, context in enumerate(contexts):
        if not isinstance(context, Context | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise MergeError(f"contexts[{index}] is a {type(context).__name__}; give an ajet_merge.Context or None")
    return contexts
