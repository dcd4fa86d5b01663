"""From what callers have (lists, buffers, numpy, torch) to checked, read-only numpy arrays.

An aligned, contiguous array of the wanted dtype is taken without a copy. The caller's object is never written to.
"""

from array import array
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import CallError

IntArray: TypeAlias = NDArray[np.int32]
FloatArray: TypeAlias = NDArray[np.float32]
MaskArray: TypeAlias = NDArray[np.uint8]
BoolArray: TypeAlias = NDArray[np.bool_]
AnyArray: TypeAlias = NDArray[Any]

MAX_ID = 2**31 - 1
MAX_FLOAT = float(np.finfo(np.float32).max)


class Field:
    """One field of one call while it is being checked: knows how to name itself in an error."""

    def __init__(self, call_id: str, name: str) -> None:
        self.call_id = call_id
        self.name = name

    def refuse(self, problem: str) -> NoReturn:
        """Raise a `CallError` that reads "call 'id': name" + problem."""
        raise CallError(self.call_id, self.name, problem)

    def token_ids(self, value: ArrayLike) -> IntArray:
        """Token ids as i32[n]; refuses floats, booleans and anything outside 0..2**31-1."""
        ids = self._array(_packed_ints(value), "a flat sequence of integer token ids")
        if ids.size == 0:
            return np.empty(0, np.int32)
        if ids.dtype.kind not in "iu":
            self._refuse_dtype(ids, "token ids must be integers")
        # As unsigned numbers negative ones are too large: one pass over int32 ids, by far the commonest, tells both.
        if ids.dtype == np.int32:
            outside = int(ids.view(np.uint32).max()) > MAX_ID
        else:
            outside = int(ids.min()) < 0 or int(ids.max()) > MAX_ID
        if outside:
            at = int(np.flatnonzero((ids < 0) | (ids > MAX_ID))[0])
            self.refuse(f"[{at}] = {ids[at]}: token ids must lie in 0..{MAX_ID}")
        return _frozen(ids, np.int32)

    def floats(self, value: ArrayLike | None, length: int, *, scalar: bool = False) -> FloatArray:
        """Finite numbers as f32[length]; with `scalar`, one number stands for `length` equal ones."""
        if value is None:
            self.refuse(f" is missing: give one number for each of the {length} completion tokens")
        if scalar and isinstance(value, int | float) and -MAX_FLOAT <= value <= MAX_FLOAT:
            return _frozen(np.full(length, value, np.float32), np.float32)  # the commonest case, kept quick
        given = self._array(value, "one number per completion token", scalar=scalar)
        if given.size and given.dtype.kind not in "fiu":
            self._refuse_dtype(given, "one real number is needed for each completion token")
        if given.ndim:
            self._check_length(given, length)
        numbers = _float32(given)
        if not np.isfinite(numbers).all():
            at = int(np.flatnonzero(~np.isfinite(numbers))[0]) if given.ndim else -1
            self.refuse(f"{'' if at < 0 else f'[{at}]'} = {given.flat[max(at, 0)]}: must be a finite float32")
        return numbers if given.ndim else _frozen(np.full(length, numbers), np.float32)

    def weights(self, value: ArrayLike, length: int) -> FloatArray:
        """Like `floats`, and not negative."""
        weights = self.floats(value, length, scalar=True)
        if weights.size and float(weights.min()) < 0:
            at = int(weights.argmin())
            self.refuse(f"[{at}] = {weights[at]}: a loss weight must be >= 0 (the sign belongs to the advantage)")
        return weights

    def mask(self, value: ArrayLike | None, length: int) -> MaskArray:
        """A mask as u8[length] of 0 and 1; None means all 1."""
        if value is None:
            return _frozen(np.ones(length, np.uint8), np.uint8)
        given = self._array(value, "one 0 or 1 per completion token")
        if given.size and given.dtype.kind not in "biu":
            self._refuse_dtype(given, "a mask holds booleans or the integers 0 and 1")
        self._check_length(given, length)
        if given.dtype.kind != "b" and ((given != 0) & (given != 1)).any():
            at = int(np.flatnonzero((given != 0) & (given != 1))[0])
            self.refuse(f"[{at}] = {given[at]}: must be 1 (trainable) or 0 (not)")
        return _frozen(given, np.uint8)

    def _array(self, value: Any, wanted: str, *, scalar: bool = False) -> AnyArray:
        try:
            given = np.asarray(value)
        except (TypeError, ValueError, RuntimeError, OverflowError, BufferError) as error:
            # numpy on ragged lists; torch on tensors of a GPU, with a gradient or in bfloat16.
            self.refuse(f" cannot be read as an array ({error}); give {wanted}")
        if given.ndim != 1 and not (scalar and given.ndim == 0):
            self.refuse(f" has shape {given.shape} and dtype {given.dtype}; give {wanted}")
        return given

    def _check_length(self, given: AnyArray, length: int) -> None:
        if given.size != length:
            self.refuse(f" has {given.size} values for {length} completion tokens; give exactly one for each")

    def _refuse_dtype(self, given: AnyArray, rule: str) -> NoReturn:
        if given.dtype.kind == "O":
            at = next((i for i, item in enumerate(given.flat) if item is None), 0)
            self.refuse(f"[{at}] = {given.flat[at]!r}: {rule}")
        example = f", for example {given.flat[0]!r}" if given.size else ""
        self.refuse(f" has dtype {given.dtype}{example}: {rule}")


def _packed_ints(value: Any) -> Any:
    """Lists of ints by way of `array`, which is faster than numpy's own path and refuses floats by itself."""
    if not isinstance(value, list | tuple):
        return value
    try:
        return array("i", value)  # pyright: ignore[reportUnknownArgumentType]
    except (TypeError, OverflowError):
        return value  # pyright: ignore[reportUnknownVariableType]  # numpy's dtype then tells what is wrong with it


def _frozen(given: AnyArray, dtype: type[Any]) -> NDArray[Any]:
    """A read-only view of `given` if its dtype and layout are right already, else of a copy."""
    if not (given.dtype == dtype and given.flags.c_contiguous and given.flags.aligned):
        given = np.require(given, dtype, ["C", "A"])
    view = given.view()
    view.flags.writeable = False
    return view


def _float32(given: AnyArray) -> FloatArray:
    if given.dtype == np.float32:
        return _frozen(given, np.float32)
    with np.errstate(over="ignore"):  # an overflow becomes inf, which the caller finds and names
        return _frozen(given, np.float32)
