"""Datums against the real package: what it holds after conversion, and the loss recomputed from it."""

import numpy as np
import pytest
from adapter_cases import Loss, agent_forest, importance_sampling, inexact_forest, logprob, plain_loss, ppo
from hypothesis import given
from merge_strategies import calls

from ajet_merge import Call, Forest, MergeError, merge
from ajet_merge.adapters.tinker import to_datums

tinker = pytest.importorskip("tinker", reason="tinker is not installed")


@pytest.mark.parametrize("loss", [importance_sampling, ppo])
def test_the_loss_of_the_datums_is_the_sum_over_the_calls(loss) -> None:
    forest = agent_forest()
    assert datums_loss(forest, loss) == pytest.approx(plain_loss(forest, loss), rel=1e-6)


@given(calls())
def test_the_same_for_any_calls(made: list[Call]) -> None:
    forest = merge(made)
    assert datums_loss(forest, ppo) == pytest.approx(plain_loss(forest, ppo), rel=1e-5, abs=1e-6)


def datums_loss(forest: Forest, loss: Loss) -> float:
    total = 0.0
    for datum in to_datums(forest):
        inputs, given = datum.model_input.to_ints(), datum.loss_fn_inputs
        targets = given["target_tokens"].to_numpy()
        new = np.array([logprob([*inputs[: i + 1], target]) for i, target in enumerate(targets.tolist())])
        terms = loss(new, given["logprobs"].to_numpy(), given["advantages"].to_numpy().astype(np.float64))
        total += float(terms.sum())  # no mask: what is not trained has advantage 0
    return total


def test_everything_is_aligned_with_the_targets() -> None:
    datum = next(datum for datum in to_datums(agent_forest()) if datum.model_input.to_ints()[0] == 30)
    given = datum.loss_fn_inputs
    assert datum.model_input.to_ints() == [30]
    assert given["target_tokens"].tolist() == [31]
    assert given["advantages"].tolist() == [pytest.approx(0.75 / 6)]
    assert given["logprobs"].tolist() == [pytest.approx(logprob([30, 31]), abs=1e-6)]


def test_tensors_are_of_the_service_s_types_and_its_own_key_set() -> None:
    for datum in to_datums(agent_forest()):
        assert {name: data.dtype for name, data in datum.loss_fn_inputs.items()} == {
            "target_tokens": "int64",
            "logprobs": "float32",
            "advantages": "float32",
        }
        assert {tuple(data.shape) for data in datum.loss_fn_inputs.values()} == {(datum.model_input.length,)}


def test_an_inexact_context_is_refused() -> None:
    with pytest.raises(MergeError, match=r"'call-1'.*context_exact is False.*make the calls anew"):
        to_datums(inexact_forest())


def test_a_row_too_long_is_refused() -> None:
    with pytest.raises(MergeError, match="11 tokens do not fit max_length=10"):
        to_datums(agent_forest(), max_length=10)
