"""What a call accepts, takes without a copy, and refuses."""

import math
import pickle
from array import array
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest

from ajet_merge import Call, CallError, MergeError, merge


class Tensor:
    """Like a torch tensor: no buffer, but `__array__`."""

    def __init__(self, data: Any) -> None:
        self.data = np.asarray(data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.data if dtype is None else self.data.astype(dtype)


class DeviceTensor:
    """Like a torch tensor on a GPU."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


MAKERS = [list, tuple, np.array, lambda x: array("i", x), lambda x: memoryview(array("i", x)), Tensor]
MAKERS += [lambda x, t=t: np.array(x, t) for t in ("i8", "u4", ">i4", "u1")]
MAKERS += [lambda x: np.repeat(np.array(x, np.int32), 2)[::2], lambda x: range(x[0], x[-1] + 1)]


@pytest.mark.parametrize("make", MAKERS)
def test_ids_may_come_as_lists_buffers_arrays_and_tensors(make: Any) -> None:
    call = Call(make([1, 2, 3]), make([4]), [-0.5])
    assert call.prompt_ids.tolist() == [1, 2, 3]
    assert call.prompt_ids.dtype == call.completion_ids.dtype == np.int32
    assert call.prompt_ids.flags.c_contiguous


def test_int32_and_float32_are_taken_without_a_copy() -> None:
    ids, numbers = np.array([1, 2], np.int32), np.array([-1, -2], np.float32)
    call = Call(array("i", [1]), ids, numbers, mask=np.ones(2, np.uint8), advantage=numbers, weight=-numbers)
    assert np.shares_memory(call.completion_ids, ids)
    assert np.shares_memory(call.logprobs, numbers)
    assert np.shares_memory(call.advantage, numbers)
    assert ids.flags.writeable


def test_fields_are_read_only() -> None:
    call = Call([1], [2], [-1])
    with pytest.raises(FrozenInstanceError):
        call.call_id = "other"  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        call.prompt_ids[0] = 7


def test_unaligned_memory_is_copied() -> None:
    shifted = np.frombuffer(b"\0" + np.array([5, 6], np.int32).tobytes(), np.int32, offset=1)
    assert Call(shifted, [1], [-1]).prompt_ids.flags.aligned


def test_one_number_stands_for_all() -> None:
    call = Call([1], [2, 3], [-1, -2], advantage=Tensor(2.5), weight=0.5)
    assert call.advantage.tolist() == [2.5, 2.5]
    assert call.weight.tolist() == [0.5, 0.5]
    assert call.mask.tolist() == [1, 1]


def test_replace_pickle_len_and_repr() -> None:
    call = replace(Call([1], [2, 3], [-1, -2], call_id="a"), weight=[0.0, 2.0])
    again = pickle.loads(pickle.dumps(call))
    assert again.weight.tolist() == [0.0, 2.0]
    assert (len(again), repr(again)) == (3, "Call('a', prompt=1, completion=2)")


@pytest.mark.parametrize("mask", [[True, False], [1, 0], np.array([1, 0], np.int64), Tensor([True, False])])
def test_masks_are_booleans_or_zeros_and_ones(mask: Any) -> None:
    assert Call([1], [2, 3], [-1, -2], mask=mask).mask.tolist() == [1, 0]


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"prompt_ids": [1, -7]}, r"prompt_ids\[1\] = -7: token ids must lie in 0\.\.2147483647"),
    ({"prompt_ids": [2**31]}, r"prompt_ids\[0\] = 2147483648: token ids must lie in"),
    ({"prompt_ids": np.array([3, 2**63], np.uint64)}, r"prompt_ids\[1\] = 9223372036854775808"),
    ({"prompt_ids": [1.0, 2.5]}, r"prompt_ids\[0\] = 1.0: token ids must be integers"),
    (
        {"prompt_ids": np.array([1.0])},
        r"prompt_ids has dtype float64, for example .*1\.0.*: token ids must be integers",
    ),
    ({"prompt_ids": np.ones(2, np.float32)}, "prompt_ids has dtype float32"),
    ({"prompt_ids": np.ones(2, bool)}, "prompt_ids has dtype bool"),
    ({"prompt_ids": [1, None]}, r"prompt_ids\[1\] = None: token ids must be integers"),
    ({"prompt_ids": [1, 2**70]}, r"prompt_ids\[0\] = 1: token ids must be integers|2\*\*70|1180591620717411303424"),
    ({"prompt_ids": ["a"]}, "prompt_ids has dtype <U1"),
    ({"prompt_ids": "12"}, r"prompt_ids has shape \(\)"),
    ({"prompt_ids": b"12"}, r"prompt_ids has shape \(\)"),
    ({"prompt_ids": 5}, r"prompt_ids has shape \(\).*flat sequence"),
    ({"prompt_ids": None}, r"prompt_ids has shape \(\)"),
    ({"prompt_ids": [[1, 2]]}, r"prompt_ids has shape \(1, 2\)"),
    ({"prompt_ids": [[1, 2], [3]]}, "prompt_ids cannot be read as an array"),
    ({"prompt_ids": DeviceTensor()}, "prompt_ids cannot be read as an array .*cuda"),
    ({"prompt_ids": [], "completion_ids": [], "logprobs": []}, "prompt_ids and completion_ids are both empty"),
    ({"completion_ids": [2, -1]}, r"completion_ids\[1\] = -1"),
    ({"logprobs": None}, "logprobs is missing: give one number for each of the 2 completion tokens"),
    ({"logprobs": [-1]}, "logprobs has 1 values for 2 completion tokens; give exactly one for each"),
    ({"logprobs": [-1, -1, -1]}, "logprobs has 3 values for 2"),
    ({"logprobs": -1.0}, r"logprobs has shape \(\)"),
    ({"logprobs": [-1, math.nan]}, r"logprobs\[1\] = nan: must be a finite float32"),
    ({"logprobs": [-math.inf, -1]}, r"logprobs\[0\] = -inf"),
    ({"logprobs": [-1, -1e300]}, r"logprobs\[1\] = -1e\+300"),
    ({"logprobs": [-1, None]}, r"logprobs\[1\] = None: one real number is needed for each completion token"),
    ({"logprobs": ["x", "y"]}, "logprobs has dtype <U1"),
    ({"logprobs": [True, False]}, "logprobs has dtype bool"),
    ({"logprobs": [1j, 2]}, "logprobs has dtype complex128"),
    ({"mask": [1]}, "mask has 1 values for 2"),
    ({"mask": [0, 2]}, r"mask\[1\] = 2: must be 1 \(trainable\) or 0 \(not\)"),
    ({"mask": [-1, 0]}, r"mask\[0\] = -1"),
    ({"mask": [0.5, 1]}, "mask has dtype float64"),
    ({"mask": 1}, r"mask has shape \(\)"),
    ({"advantage": math.nan}, "advantage = nan: must be a finite float32"),
    ({"advantage": [1.0]}, "advantage has 1 values for 2"),
    ({"advantage": None}, "advantage is missing"),
    ({"weight": [1, math.inf]}, r"weight\[1\] = inf"),
    ({"weight": [0, -0.5]}, r"weight\[1\] = -0\.5: a loss weight must be >= 0"),
    ({"compat_key": 3}, "compat_key = 3: must be a string"),
    ({"episode_id": None}, "episode_id = None: must be a string"),
]


@pytest.mark.parametrize(("wrong", "message"), REFUSALS, ids=[next(iter(wrong)) for wrong, _ in REFUSALS])
def test_refusals_name_the_call_the_field_the_value_and_the_rule(wrong: dict[str, Any], message: str) -> None:
    right: dict[str, Any] = {"prompt_ids": [1], "completion_ids": [2, 3], "logprobs": [-1, -2], "call_id": "c7"}
    with pytest.raises(CallError, match=message) as caught:
        Call(**{**right, **wrong})
    assert str(caught.value).startswith("call 'c7': ")
    assert (caught.value.call_id, caught.value.field) == ("c7", next(iter(wrong)))
    assert isinstance(caught.value, MergeError)


def test_a_sampler_step_without_logprob_is_refused_by_the_call_s_name() -> None:
    with pytest.raises(CallError, match=r"call 'c9': logprobs has 2 values for 3 completion tokens"):
        Call([1], [2, 3, 4], [-1, -2], call_id="c9")


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([True, 2], r"\[0\] = True: token ids must be integers"),
        ((1, 2.0), r"\[1\] = 2\.0: token ids must be integers"),
        ([5, None], r"\[1\] = None: token ids must be integers"),
        ([5, 10**30], rf"\[1\] = {10**30}: token ids must lie in 0\.\.2147483647"),
        ([2**63, 1], rf"\[0\] = {2**63}: token ids must lie in 0\.\.2147483647"),
    ],
)
def test_the_item_of_a_list_that_is_no_id_is_named(ids: Any, message: str) -> None:
    with pytest.raises(CallError, match=message):
        Call(ids, [1], [-1])


def test_numpy_integers_in_a_list_are_ids() -> None:
    assert Call([np.int64(3), 4], [5], [-1]).prompt_ids.tolist() == [3, 4]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("advantage", True, "advantage has dtype bool"),
        ("weight", np.True_, "weight has dtype bool"),
        ("weight", -1.0, r"weight = -1\.0: a loss weight must be >= 0"),
        ("advantage", math.nan, "advantage = nan: must be a finite float32"),
        ("logprobs", np.zeros(0, complex), "logprobs has dtype complex128"),
        ("prompt_ids", np.ma.MaskedArray([1, 2], [True, False]), "prompt_ids is a masked array"),
    ],
)
def test_what_is_wrong_is_refused_without_a_completion_too(field: str, value: Any, message: str) -> None:
    with pytest.raises(CallError, match=message):
        Call(**{"prompt_ids": [1], "completion_ids": [], "logprobs": [], field: value})


def test_calls_that_are_none_are_refused() -> None:
    with pytest.raises(MergeError, match="calls is a NoneType; give a sequence"):
        merge(None)  # type: ignore[arg-type]
