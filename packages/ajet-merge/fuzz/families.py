"""Families of calls that share prefixes in every way there is, and what a right merge must make of each."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ajet_merge import Call

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float32]
Generator = np.random.Generator
T = TypeVar("T")


class Scale(NamedTuple):
    """How large the calls of a family are, and in how many of all families."""

    share: float
    calls: int
    part: int
    """Most tokens that one step of making a sequence adds."""


SMALL = Scale(0.9868, calls=12, part=6)
LONG = Scale(0.013, calls=6, part=3000)  # beyond the blocks in which tokens are compared
HUGE = Scale(0.0002, calls=3, part=400_000)
MOST_TOKENS = 1_000_000
LISTS_UP_TO = 1000

PALETTES = [
    np.array([7], np.int32),
    np.array([0, 1], np.int32),
    np.array([0, 1, 2], np.int32),
    np.array([0, 2**31 - 1, 2**31 - 2], np.int32),
    np.arange(50_000, dtype=np.int32),
]
ODD_FLOATS = [0.0, -0.0, 1e-45, -1e-38, 3.4028235e38, -3.4028235e38]


@dataclass(frozen=True, eq=False, slots=True)
class Sample:
    """A call, and what its path and its occurrences must be.

    Attributes:
        call: the call.
        sequence: i32[n], prompt + completion.
        prefixes: i32[n], the number of each of its non-empty prefixes in `Family.tokens`. Equal prefixes of calls with
            the same compat_key have the same number, all others have different ones.
        trained: number of occurrences.
        trained_prefixes: the numbers of the trained tokens' prefixes, i32, as bytes; and in the same way:
        t: index in the completion, i32.
        logprob: f32.
        advantage: f32.
        weight: f32.
    """

    call: Call
    sequence: IntArray
    prefixes: IntArray
    trained: int
    trained_prefixes: bytes
    t: bytes
    logprob: bytes
    advantage: bytes
    weight: bytes


@dataclass(frozen=True, eq=False, slots=True)
class Family:
    """Calls to merge in many selections and orders; `tokens[p]` is the last token of prefix number p."""

    samples: list[Sample]
    tokens: IntArray


def make_family(rng: Generator) -> Family:
    """A family drawn at random."""
    scale, palette = _scale(rng), pick(rng, PALETTES)
    sequences: list[IntArray] = []
    splits: list[int] = []
    for _ in range(int(rng.integers(1, scale.calls + 1))):
        sequence = _derive(rng, sequences, lambda: _fresh(rng, palette, scale.part))
        sequences.append(sequence if sequence.size else palette[:1])
        splits.append(_split(rng, sequences, splits))
    keys = [pick(rng, ["", "", "", "adapter"]) for _ in sequences]
    prefixes, tokens = _number_prefixes(sequences, keys)
    parts = zip(sequences, splits, keys, prefixes, strict=True)
    return Family([_sample(rng, f"c{index}", *part) for index, part in enumerate(parts)], tokens)


def pick(rng: Generator, items: Sequence[T]) -> T:
    """One of the items, each as likely as the others."""
    return items[int(rng.integers(len(items)))]


def _scale(rng: Generator) -> Scale:
    scales = [HUGE, LONG, SMALL]
    return scales[int(np.searchsorted(np.cumsum([scale.share for scale in scales[:-1]]), rng.random(), side="right"))]


def _fresh(rng: Generator, palette: IntArray, most: int) -> IntArray:
    return palette[rng.integers(0, palette.size, int(rng.integers(0, most + 1)))]


def _derive(rng: Generator, made: Sequence[IntArray], fresh: Callable[[], IntArray]) -> IntArray:
    """A sequence that extends, forks from, repeats, stops short of or changes an earlier one, or is new."""
    kind = int(rng.integers(7)) if made else 0
    if kind == 0:
        return fresh()
    base = made[-2] if kind == 1 and len(made) > 1 else pick(rng, made)  # 1: two conversations in turns
    at = int(rng.integers(0, base.size + 1))
    if kind in (1, 2):
        whole = np.concatenate([base, fresh()])
    elif kind == 3:
        whole = np.concatenate([base[:at], fresh()])
    elif kind == 4:
        whole = base[:at]
    elif kind == 5:
        whole = np.concatenate([base[:at], fresh()[:1], base[at + 1 :]])
    else:
        whole = base
    return whole[:MOST_TOKENS]


def _split(rng: Generator, sequences: Sequence[IntArray], splits: Sequence[int]) -> int:
    """Tokens of the last sequence's prompt: as many as an earlier one's, none, all, the tokens before, or any."""
    size = sequences[-1].size
    choices = [
        0,
        size,
        *splits[-2:],
        *(other.size for other in sequences[-3:-1]),
        *rng.integers(0, size + 1, 4).tolist(),
    ]
    return min(size, pick(rng, choices))


def _number_prefixes(sequences: Sequence[IntArray], keys: Sequence[str]) -> tuple[list[IntArray], IntArray]:
    """See `Sample.prefixes` and `Family.tokens`: by comparing each sequence with all before it."""
    numbers: list[IntArray] = []
    tokens: list[IntArray] = []
    used = 0
    for index, sequence in enumerate(sequences):
        earlier = [other for other in range(index) if keys[other] == keys[index]]
        shared, other = max(((_common(sequence, sequences[other]), other) for other in earlier), default=(0, 0))
        fresh = np.arange(used, used + sequence.size - shared, dtype=np.int32)
        numbers.append(np.concatenate([numbers[other][:shared], fresh]) if shared else fresh)
        tokens.append(sequence[shared:])
        used += fresh.size
    return numbers, np.concatenate(tokens)


def _common(a: IntArray, b: IntArray) -> int:
    shorter = min(a.size, b.size)
    different = np.flatnonzero(a[:shorter] != b[:shorter])
    return int(different[0]) if different.size else shorter


def _sample(
    rng: Generator, call_id: str, sequence: IntArray, split: int, compat_key: str, prefixes: IntArray
) -> Sample:
    prompt, completion = sequence[:split], sequence[split:]
    mask = _mask(rng, completion.size)
    logprobs, advantage = _floats(rng, completion.size), _floats(rng, completion.size)
    weight = np.abs(_floats(rng, completion.size))
    call = Call(
        in_some_form(rng, prompt),
        in_some_form(rng, completion),
        in_some_form(rng, logprobs),
        mask=in_some_form(rng, mask),
        advantage=in_some_form(rng, advantage),
        weight=in_some_form(rng, weight),
        call_id=call_id,
        compat_key=compat_key,
    )
    t = np.flatnonzero(mask).astype(np.int32)
    t = t[t + split > 0]  # nothing predicts the first token of all
    floats = [values[t].tobytes() for values in (logprobs, advantage, weight)]
    return Sample(call, sequence, prefixes, t.size, prefixes[split + t].tobytes(), t.tobytes(), *floats)


def _mask(rng: Generator, size: int) -> NDArray[np.uint8]:
    kind = int(rng.integers(4))
    return np.full(size, kind, np.uint8) if kind < 2 else rng.integers(0, 2, size, np.uint8)


def _floats(rng: Generator, size: int) -> FloatArray:
    values = rng.standard_normal(size, np.float32)
    if size:
        values[int(rng.integers(size))] = pick(rng, ODD_FLOATS)
    return values


class ArrayLike:
    """Like a tensor on a CPU: no buffer, but `__array__`."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self.values if dtype is None else self.values.astype(dtype)


def _read_only(values: NDArray[Any]) -> NDArray[Any]:
    values = values.copy()
    values.flags.writeable = False
    return values


def _unaligned(values: NDArray[Any]) -> NDArray[Any]:
    return np.frombuffer(b"x" + values.tobytes(), values.dtype, offset=1) if values.size else values


FORMS: list[Callable[[NDArray[Any]], Any]] = [
    lambda values: values.copy(),
    lambda values: np.repeat(values, 2)[::2],
    lambda values: values[::-1].copy()[::-1],
    lambda values: values.astype(values.dtype.newbyteorder(">")),
    lambda values: values.astype({"i": np.int64, "f": np.float64, "u": np.bool_}[values.dtype.kind]),
    lambda values: values.copy().data,  # a memoryview
    _read_only,
    _unaligned,
    ArrayLike,
]
LIST_FORMS: list[Callable[[NDArray[Any]], Any]] = [
    lambda values: values.tolist(),
    lambda values: tuple(values.tolist()),
    lambda values: array({"i": "i", "f": "f", "u": "B"}[values.dtype.kind], values.tolist()),
]


def in_some_form(rng: Generator, values: NDArray[Any]) -> Any:
    """The same values in one of the forms in which a `Call` accepts them, in memory of their own."""
    return pick(rng, FORMS if values.size > LISTS_UP_TO else FORMS + LIST_FORMS)(values)
