"""Rows of a forest as one batch: what is where, what is trained, and the loss over it."""

from typing import Any

import numpy as np
import pytest
from adapter_cases import agent_forest, dual_clip_ppo, importance_sampling, logprob, plain_loss, ppo
from hypothesis import assume, given
from merge_strategies import calls

from ajet_merge import Call, MergeError, merge
from ajet_merge.adapters.padded import PaddedRows, to_padded
from ajet_merge.adapters.rows import trained_rows

PAD = 99


def unpad(batch: PaddedRows, index: int) -> list[int]:
    attention = np.concatenate([batch.prompt_mask[index], batch.response_mask[index]]).astype(bool)
    return np.concatenate([batch.prompt_ids[index], batch.response_ids[index]])[attention].tolist()


def model_logprobs(batch: PaddedRows) -> np.ndarray:
    """f64[B, R], from nothing but the batch's ids and attention masks."""
    new = np.zeros(batch.logprobs.shape)
    for index in range(batch.prompt_ids.shape[0]):
        sequence, start = unpad(batch, index), int(batch.prompt_mask[index].sum())
        for t in range(int(batch.response_mask[index].sum())):
            new[index, t] = logprob(sequence[: start + t + 1])
    return new


@given(calls())
def test_rows_hold_every_occurrence_once_and_nothing_else(made: list[Call]) -> None:
    forest = merge(made)
    assume(len(forest.occurrences) > 0)
    batch = to_padded(forest, pad_token_id=PAD, multiple_of=3)
    occurrences = forest.occurrences
    folded = (occurrences.advantage * occurrences.weight).tolist()
    trained = batch.loss_mask.astype(bool)
    assert sorted(
        zip(batch.logprobs[trained], batch.advantages[trained], batch.response_ids[trained], strict=True)
    ) == (sorted(zip(occurrences.logprob, folded, forest.tokens[occurrences.token], strict=True)))
    assert not batch.logprobs[~trained].any()
    assert not batch.advantages[~trained].any()
    assert (batch.loss_mask <= batch.response_mask).all()


@given(calls())
def test_prompts_end_and_responses_begin_at_the_seam_and_nothing_is_lost(made: list[Call]) -> None:
    forest = merge(made)
    assume(len(forest.occurrences) > 0)
    batch = to_padded(forest, pad_token_id=PAD)
    lines = [line for line in forest.timelines() if line.positions.size]
    assert [unpad(batch, index) for index in range(len(lines))] == [line.tokens.tolist() for line in lines]
    assert (batch.prompt_ids[batch.prompt_mask == 0] == PAD).all()
    assert (batch.response_ids[batch.response_mask == 0] == PAD).all()
    assert (np.diff(batch.prompt_mask, axis=1) >= 0).all()
    assert (np.diff(batch.response_mask, axis=1) <= 0).all()
    assert batch.prompt_mask[:, -1].all()
    assert batch.loss_mask[:, 0].all()


@pytest.mark.parametrize("loss", [importance_sampling, ppo, dual_clip_ppo])
def test_the_sum_over_the_batch_is_the_sum_over_the_calls(loss) -> None:
    forest = agent_forest()
    batch = to_padded(forest, pad_token_id=PAD, multiple_of=4)
    terms = loss(model_logprobs(batch), batch.logprobs.astype(np.float64), batch.advantages.astype(np.float64))
    assert (terms * batch.loss_mask).sum() == pytest.approx(plain_loss(forest, loss), rel=1e-6)


def test_tool_tokens_between_turns_are_attended_to_and_not_trained() -> None:
    batch = to_padded(agent_forest(), pad_token_id=PAD)
    row = next(index for index in range(len(batch.rows)) if 61 in batch.response_ids[index])
    assert batch.response_ids[row].tolist() == [4, 5, 61, 62, 7, 8, 63, 9]
    assert batch.loss_mask[row].tolist() == [1, 1, 0, 0, 1, 1, 0, 1]
    assert batch.response_mask[row].tolist() == [1] * 8


def test_rows_that_train_nothing_are_left_out() -> None:
    forest = agent_forest()
    assert any(40 in line.tokens for line in forest.timelines())
    assert all(40 not in row.timeline.tokens for row in trained_rows(forest))


def test_dummies_fill_up_to_a_multiple_and_train_nothing() -> None:
    batch = to_padded(agent_forest(), pad_token_id=PAD, multiple_of=8)
    real = len(batch.rows)
    assert (real, batch.prompt_ids.shape[0]) == (3, 8)
    assert not batch.loss_mask[real:].any()
    assert [unpad(batch, index) for index in range(real, 8)] == [[PAD, PAD]] * 5


def test_given_lengths_are_the_widths() -> None:
    batch = to_padded(agent_forest(), pad_token_id=PAD, prompt_length=7, response_length=11)
    assert batch.prompt_ids.shape[1] == 7
    assert batch.response_ids.shape[1] == 11


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"prompt_length": 2},
            r"call.*'call-\d'.*3 prompt tokens do not fit prompt_length=2; raise prompt_length to at",
        ),
        (
            {"response_length": 5},
            r"8 response tokens do not fit response_length=5; raise response_length to at least 8",
        ),
        ({"multiple_of": 0}, "multiple_of=0: must be at least 1"),
        ({"multiple_of": 1.5}, "multiple_of=1.5: must be an integer"),
        ({"multiple_of": 2**70}, f"multiple_of={2**70}: must be at most 2147483647"),
        ({"pad_token_id": -1}, "pad_token_id=-1: must be at least 0"),
        ({"pad_token_id": 1.5}, "pad_token_id=1.5: must be an integer"),
        ({"pad_token_id": True}, "pad_token_id=True: must be an integer"),
        ({"pad_token_id": 2**70}, f"pad_token_id={2**70}: must be at most 2147483647"),
        ({"pad_token_id": None}, "pad_token_id=None: .* no pad token.* eos_token_id"),
        ({"prompt_length": "a"}, "prompt_length='a': must be an integer"),
        ({"prompt_length": 2**70}, f"prompt_length={2**70}: must be at most 2147483647"),
        ({"response_length": 8.0}, "response_length=8.0: must be an integer"),
        ({"response_length": 0}, "response_length=0: must be at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(MergeError, match=said):
        to_padded(agent_forest(), **{"pad_token_id": PAD, **wrong})


def test_integers_of_numpy_are_integers() -> None:
    given = to_padded(agent_forest(), pad_token_id=np.int64(PAD), prompt_length=np.int32(7), multiple_of=np.int16(4))
    assert given.prompt_ids.shape == (4, 7)
    assert given.prompt_ids[0, 0] == PAD


@pytest.mark.parametrize(
    ("limit", "said"), [("a", "='a': must be an integer"), (9.5, "=9.5: must be"), (0, "=0: must be at least 1")]
)
def test_a_limit_that_is_none_is_refused_without_any_row_too(limit: Any, said: str) -> None:
    with pytest.raises(MergeError, match=f"max_length{said}"):
        trained_rows(merge([]), limit)


def test_a_forest_that_trains_nothing_is_refused() -> None:
    with pytest.raises(MergeError, match="no call of the forest trains a token"):
        to_padded(merge([Call([1], [], [])]), pad_token_id=PAD)


def test_a_row_of_many_calls_is_named_by_the_first() -> None:
    made = [Call([*range(1, 9 + n)], [9 + n], [-1.0], call_id=f"t{n}") for n in range(6)]
    with pytest.raises(
        MergeError, match=r"row of calls 0 \('t0'\), .*, 3 \('t3'\) and 2 more: 14 tokens do not fit max_length=13"
    ):
        trained_rows(merge(made), max_length=13)
