"""From what callers have (lists, buffers, numpy, torch) to checked, read-only numpy arrays.

An aligned, contiguous array of the wanted dtype is taken without a copy. The caller's object is never written to. The
commonest forms are checked by one compiled pass (`plain_ids`, `plain_floats`); `Field` reads everything else, and knows
how to say what is wrong with it.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _backend  # pyright: ignore[reportPrivateUsage] - private to the package
from ._arrays import MAX_ID, AnyArray, FloatArray, IntArray, MaskArray, frozen
from .errors import CallError

MAX_FLOAT = float(np.finfo(np.float32).max)
_INT32, _FLOAT32 = np.dtype(np.int32), np.dtype(np.float32)


def plain_ids(value: Any) -> IntArray | None:
    """Token ids as i32[n] if `value` is a flat int32 array or a list or tuple of ints, and good; else None."""
    if isinstance(value, list | tuple):
        ids = _backend.scan.packed_ids(list(value))  # pyright: ignore[reportUnknownArgumentType]
        if ids is not None:
            ids.flags.writeable = False
        return ids
    if not _is_plain(value, _INT32) or _backend.scan.first_negative(value) >= 0:
        return None
    return _read_only(value)


def plain_floats(value: Any, length: int) -> FloatArray | None:
    """Numbers as f32[length] if `value` is a flat float32 array of that length, all finite; else None."""
    if not _is_plain(value, _FLOAT32) or value.size != length or _backend.scan.first_not_finite(value) >= 0:
        return None
    return _read_only(value)


def _is_plain(value: Any, dtype: np.dtype[Any]) -> bool:
    if type(value) is not np.ndarray or value.dtype != dtype or value.ndim != 1:
        return False
    flags = value.flags
    return flags.c_contiguous and flags.aligned


def _read_only(value: NDArray[Any]) -> NDArray[Any]:
    if not value.flags.writeable:
        return value
    view = value.view()
    view.flags.writeable = False
    return view


class Constant:
    """Read-only arrays of one number, of any length, all views of one block."""

    def __init__(self, number: float, dtype: type[Any]) -> None:
        self._block = np.full(1024, number, dtype)
        self._block.flags.writeable = False

    def __call__(self, length: int) -> NDArray[Any]:
        """The number, `length` times."""
        block = self._block  # another thread may replace it
        if length > block.size:
            block = np.full(2 * length, block[0], block.dtype)
            block.flags.writeable = False
            self._block = block
        return block[:length]


ones_u8 = Constant(1, np.uint8)
ones_f32 = Constant(1.0, np.float32)
zeros_f32 = Constant(0.0, np.float32)


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
        if isinstance(value, list | tuple):
            self._check_items(value)  # pyright: ignore[reportUnknownArgumentType]
        ids = self._array(value, "a flat sequence of integer token ids")
        if ids.size == 0:
            return np.empty(0, np.int32)
        if ids.dtype.kind not in "iu":
            self._refuse_dtype(ids, "token ids must be integers")
        if int(ids.min()) < 0 or int(ids.max()) > MAX_ID:
            at = int(np.flatnonzero((ids < 0) | (ids > MAX_ID))[0])
            self.refuse(f"[{at}] = {ids[at]}: token ids must lie in 0..{MAX_ID}")
        return frozen(ids, np.int32)

    def _check_items(self, items: Sequence[Any]) -> None:
        """Numpy would turn booleans into numbers, and numbers that are too large into objects or floats."""
        for at, item in enumerate(items):
            if isinstance(item, float | bool | None | np.bool_):
                self.refuse(f"[{at}] = {item!r}: token ids must be integers")
            if isinstance(item, int) and not 0 <= item <= MAX_ID:
                self.refuse(f"[{at}] = {item}: token ids must lie in 0..{MAX_ID}")

    def floats(self, value: ArrayLike | None, length: int, *, scalar: bool = False) -> FloatArray:
        """Finite numbers as f32[length]; with `scalar`, one number stands for `length` equal ones."""
        if value is None:
            self.refuse(f" is missing: give one number for each of the {length} completion tokens")
        if scalar and type(value) in (int, float) and -MAX_FLOAT <= value <= MAX_FLOAT:  # pyright: ignore[reportOperatorIssue]
            return _read_only(np.full(length, value, np.float32))  # the commonest case, kept quick
        given = self._array(value, "one number per completion token", scalar=scalar)
        if given.dtype.kind not in "fiu":
            self._refuse_dtype(given, "one real number is needed for each completion token")
        if given.ndim:
            self._check_length(given, length)
        numbers = _float32(given)
        if not np.isfinite(numbers).all():
            at = int(np.flatnonzero(~np.isfinite(numbers))[0]) if given.ndim else -1
            self.refuse(f"{'' if at < 0 else f'[{at}]'} = {given.flat[max(at, 0)]}: must be a finite float32")
        return numbers if given.ndim else frozen(np.full(length, numbers), np.float32)

    def weights(self, value: ArrayLike, length: int) -> FloatArray:
        """Like `floats`, and not negative."""
        rule = "a loss weight must be >= 0 (the sign belongs to the advantage)"
        weights = self.floats(value, length, scalar=True)
        if isinstance(value, int | float) and value < 0:
            self.refuse(f" = {value}: {rule}")
        if weights.size and float(weights.min()) < 0:
            at = int(weights.argmin())
            self.refuse(f"[{at}] = {weights[at]}: {rule}")
        return weights

    def mask(self, value: ArrayLike, length: int) -> MaskArray:
        """A mask as u8[length] of 0 and 1."""
        given = self._array(value, "one 0 or 1 per completion token")
        if given.size and given.dtype.kind not in "biu":
            self._refuse_dtype(given, "a mask holds booleans or the integers 0 and 1")
        self._check_length(given, length)
        if given.dtype.kind != "b" and ((given != 0) & (given != 1)).any():
            at = int(np.flatnonzero((given != 0) & (given != 1))[0])
            self.refuse(f"[{at}] = {given[at]}: must be 1 (trainable) or 0 (not)")
        return frozen(given, np.uint8)

    def _array(self, value: Any, wanted: str, *, scalar: bool = False) -> AnyArray:
        if isinstance(value, np.ma.MaskedArray):
            self.refuse(f" is a masked array, whose mask would be lost; give {wanted}, for example its .filled(...)")
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


def _float32(given: AnyArray) -> FloatArray:
    if given.dtype == np.float32:
        return frozen(given, np.float32)
    with np.errstate(over="ignore"):  # an overflow becomes inf, which the caller finds and names
        return frozen(given, np.float32)
