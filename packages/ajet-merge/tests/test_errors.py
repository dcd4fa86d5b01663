"""Errors travel between processes: a refused call in a worker must not take the worker's pool with it."""

import pickle

import pytest

from ajet_merge import Call, CallError, MergeError, PathTooLongError, merge


def test_errors_survive_pickling() -> None:
    with pytest.raises(CallError) as refused:
        Call([1], [2], [None], call_id="x")  # type: ignore[list-item]
    with pytest.raises(PathTooLongError) as too_long:
        merge([Call([1, 2], [3], [-1], call_id="y")]).packs(2)
    for error in (refused.value, too_long.value, MergeError("plain")):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert (str(again), again.__dict__) == (str(error), error.__dict__)
    assert refused.value.field == "logprobs"
    assert too_long.value.length == 3
