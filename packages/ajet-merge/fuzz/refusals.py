"""Bad input: every piece must be refused by a `MergeError` that names the call and the field."""

from collections.abc import Callable
from typing import Any

import numpy as np
from checks import Failure, require
from families import Generator, pick

from ajet_merge import Call, CallError, MergeError, Tracker, backend, merge
from ajet_merge._backend import use

SIZE = 3
IDS = ("prompt_ids", "completion_ids")
FLOATS = ("logprobs", "advantage", "weight")
ARRAYS = (*IDS, "mask", *FLOATS)
NAMES = ("call_id", "attempt_id", "episode_id", "group_id", "compat_key")


class BadArray:
    """Like a tensor that is elsewhere: its `__array__` raises what torch raises."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise TypeError("the tensor is on another device")


def _released() -> memoryview:
    view = memoryview(b"123")
    view.release()
    return view


def _with(rng: Generator, value: Any, dtype: Any = None) -> Any:
    """Ones, and the value at a random place: a list, or an array if there is a dtype."""
    values: list[Any] = [1] * SIZE
    values[int(rng.integers(SIZE))] = value
    return values if dtype is None else np.array(values, dtype)


Maker = Callable[[Generator], Any]
NOT_AN_ARRAY: list[Maker] = [
    lambda rng: None,
    lambda rng: object(),
    lambda rng: "123",
    lambda rng: b"123",
    lambda rng: {1: 1, 2: 2, 3: 3},
    lambda rng: {1, 2, 3},
    lambda rng: iter([1, 2, 3]),
    lambda rng: [[1, 1, 1]],
    lambda rng: [[1], [1, 1]],
    lambda rng: np.ones((SIZE, 1), np.int32),
    lambda rng: np.ones((1, SIZE), np.float32),
    lambda rng: np.ones((0, SIZE), np.uint8),
    lambda rng: np.array(["1"] * SIZE),
    lambda rng: np.array([b"1"] * SIZE),
    lambda rng: np.ones(SIZE, np.complex128),
    lambda rng: np.ones(SIZE, "M8[s]"),
    lambda rng: np.ones(SIZE, "m8[s]"),
    lambda rng: np.ones(SIZE, [("a", "i4")]),
    lambda rng: np.array([1] * SIZE, object),
    lambda rng: _with(rng, None),
    lambda rng: _with(rng, "1"),
    lambda rng: _with(rng, [1]),
    lambda rng: _with(rng, object()),
    lambda rng: BadArray(),
    lambda rng: _released(),
]
BAD_IDS: list[Maker] = [
    lambda rng: _with(rng, -int(rng.integers(1, 2**31))),
    lambda rng: _with(rng, int(rng.integers(2**31, 2**62))),
    lambda rng: _with(rng, 2**64 + int(rng.integers(2**62))),
    lambda rng: _with(rng, -1, np.int8),
    lambda rng: _with(rng, -(2**31), np.int32),
    lambda rng: _with(rng, -1, ">i4")[::-1],
    lambda rng: _with(rng, 2**31, np.uint32),
    lambda rng: _with(rng, 2**63, np.uint64),
    lambda rng: _with(rng, -(2**63), np.int64),
    lambda rng: _with(rng, 1.0),
    lambda rng: np.ones(SIZE, np.float32),
    lambda rng: np.ones(SIZE, np.float16),
    lambda rng: np.ones(SIZE, np.bool_),
    lambda rng: [True] * SIZE,
    lambda rng: _with(rng, True),
    lambda rng: 1,
    lambda rng: np.ones(SIZE, np.float64).data,
]
BAD_FLOATS: list[Maker] = [
    lambda rng: _with(rng, float("nan")),
    lambda rng: _with(rng, float("inf"), np.float32),
    lambda rng: _with(rng, float("-inf"), ">f8"),
    lambda rng: _with(rng, 1e300),
    lambda rng: _with(rng, 10**400),
    lambda rng: [True] * SIZE,
    lambda rng: np.ones(SIZE, np.bool_),
    lambda rng: np.ones(SIZE + int(rng.integers(1, 3)), np.float32),
    lambda rng: [1.0] * (SIZE - int(rng.integers(1, 3))),
    lambda rng: np.float32("nan"),
    lambda rng: True,
]
BAD_MASKS: list[Maker] = [
    lambda rng: _with(rng, 2),
    lambda rng: _with(rng, -1, np.int8),
    lambda rng: _with(rng, 0.5),
    lambda rng: _with(rng, 2**70),
    lambda rng: np.ones(SIZE, np.float32),
    lambda rng: [1] * (SIZE + 1),
    lambda rng: [],
    lambda rng: 1,
]
NOT_A_NAME: list[Maker] = [lambda rng: None, lambda rng: 3, lambda rng: b"x", lambda rng: ["x"], lambda rng: np.str_]
BAD_WEIGHTS: list[Maker] = [lambda rng: _with(rng, -0.5), lambda rng: -1e-45, lambda rng: _with(rng, -1, np.int64)]
NEEDED: list[Maker] = [maker for maker in NOT_AN_ARRAY if maker(np.random.default_rng(0)) is not None]
BY_FIELD: dict[str, list[Maker]] = {
    **dict.fromkeys(IDS, NOT_AN_ARRAY + BAD_IDS),
    "logprobs": [*NOT_AN_ARRAY, *BAD_FLOATS, lambda rng: 1.0],
    "advantage": NOT_AN_ARRAY + BAD_FLOATS,
    "weight": NOT_AN_ARRAY + BAD_FLOATS + BAD_WEIGHTS,
    "mask": NEEDED + BAD_MASKS,
    **dict.fromkeys(NAMES, NOT_A_NAME),
    "context_exact": [lambda rng: None, lambda rng: 1, lambda rng: "yes", lambda rng: np.True_],
}
FIELDS = list(BY_FIELD)


def check_refusal(rng: Generator) -> None:
    """A call with one bad field must be refused by name, and in the same words by the compiled core and its twin.

    Raises:
        Failure: it was not.
    """
    field = pick(rng, FIELDS)
    bad = pick(rng, BY_FIELD[field])(rng)
    told: list[str] = []
    try:
        for core in ("cython", "python"):
            use(core)
            told.append(_refusal(field, bad))
    finally:
        use(backend)
    require(told[0] == told[1], f"{field}={bad!r} is refused in two ways: {told}")


def _refusal(field: str, bad: Any) -> str:
    good: dict[str, Any] = {"prompt_ids": [1], "completion_ids": [1] * SIZE, "logprobs": [-1.0] * SIZE, "call_id": "c7"}
    try:
        Call(**{**good, field: bad})
    except CallError as error:
        name = str(bad) if field == "call_id" else "c7"
        named = (error.field, error.call_id) == (field, name) and field in str(error) and repr(name) in str(error)
        require(named, f"the refusal of {field}={bad!r} does not name call and field: {error}")
        return str(error)
    raise Failure(f"{field}={bad!r} was accepted")


def check_bad_batch(rng: Generator) -> None:
    """A batch with something in it that is no call is refused, and changes nothing.

    Raises:
        Failure: it was not, or it did.
    """
    call = Call([1], [2, 3], [-1.0, -1.0])
    tracker = Tracker()
    tracker.add(call)
    batch: list[Any] = [call, pick(rng, [None, 7, "call", {"prompt_ids": [1]}, [call]]), call]
    for add in (merge, tracker.add_all):
        try:
            add(batch)
        except MergeError as error:
            require("calls[1]" in str(error), f"the refusal does not name the place: {error}")
        else:
            raise Failure(f"{batch[1]!r} was merged")
    require(len(tracker) == 1 and tracker.forest().num_tokens == 3, "a refused batch changed the tracker")
