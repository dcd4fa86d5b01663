"""One rectangular batch of numpy arrays: prompts padded on the left, responses on the right."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ajet_merge._arguments import integer
from ajet_merge._arrays import MAX_ID, FloatArray
from ajet_merge.errors import MergeError
from ajet_merge.forest import Forest

from .rows import Row, check_length, trained_rows

LongArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class PaddedRows:
    """B rows: prompts of width P ending at column P - 1, responses of width R beginning at column 0.

    Joined to [B, P + R] there is no padding inside a row, so that `position = cumsum(attention) - 1` is the position
    in the row, and token t of the response is predicted by column P + t - 1.

    Attributes:
        prompt_ids: i64[B, P], padded on the left.
        prompt_mask: i64[B, P], 1 = a token, 0 = padding.
        response_ids: i64[B, R], padded on the right. Begins with the first trained token of the row.
        response_mask: i64[B, R], 1 = a token, trained or not, 0 = padding. For attention, not for the loss.
        loss_mask: i64[B, R], 1 = a trained token. Tool results, user turns and padding are 0.
        logprobs: f32[B, R], the rollout's logprob of each trained token, 0 elsewhere.
        advantages: f32[B, R], advantage * weight of each trained token, 0 elsewhere.
        rows: the B' <= B real rows. Those after them are dummies of two padding tokens that train nothing.
    """

    prompt_ids: LongArray
    prompt_mask: LongArray
    response_ids: LongArray
    response_mask: LongArray
    loss_mask: LongArray
    logprobs: FloatArray
    advantages: FloatArray
    rows: tuple[Row, ...]


def to_padded(
    forest: Forest,
    *,
    pad_token_id: int,
    prompt_length: int | None = None,
    response_length: int | None = None,
    multiple_of: int = 1,
) -> PaddedRows:
    """Lay the rows of a forest out as one batch.

    Args:
        forest: the merged calls, with weights and advantages set.
        pad_token_id: the id that fills `prompt_ids` and `response_ids`.
        prompt_length: P; None takes the longest prompt.
        response_length: R; None takes the longest response.
        multiple_of: B is rounded up to a multiple of this with dummies, for trainers that split a batch evenly.

    Raises:
        MergeError: no call trains a token, a row does not fit (rows are never truncated), or an argument is out of
            range.
    """
    pad_token_id = _pad(pad_token_id)
    multiple_of = integer("multiple_of", multiple_of, 1, MAX_ID)
    rows = trained_rows(forest)
    if not rows:
        raise MergeError("no call of the forest trains a token: a batch needs at least one row that does")
    prompt_width = _width(rows, [row.start for row in rows], "prompt", prompt_length)
    width = _width(rows, [row.response_ids.size for row in rows], "response", response_length)
    count = -(-len(rows) // multiple_of) * multiple_of
    batch = _blank(count, prompt_width, width, pad_token_id, tuple(rows))
    for index, row in enumerate(rows):
        _fill(batch, index, row)
    batch.prompt_mask[len(rows) :, -1] = 1  # a row without any token to attend to gives NaN
    batch.response_mask[len(rows) :, 0] = 1
    return batch


def _pad(token_id: int) -> int:
    if token_id is None:  # pyright: ignore[reportUnnecessaryComparison]  # tokenizers without a pad token have None
        raise MergeError(
            "pad_token_id=None: the tokenizer has no pad token; give another id, for example its eos_token_id (padding "
            "is masked)"
        )
    return integer("pad_token_id", token_id, 0, MAX_ID)


def _width(rows: list[Row], lengths: list[int], part: str, given: int | None) -> int:
    if given is None:
        return max(lengths)
    name = f"{part}_length"
    given = integer(name, given, 1, MAX_ID)
    for row, length in zip(rows, lengths, strict=True):
        check_length(row, f"{part} tokens", length, name, given)
    return given


def _blank(count: int, prompt_width: int, width: int, pad_token_id: int, rows: tuple[Row, ...]) -> PaddedRows:
    def zeros() -> LongArray:
        return np.zeros((count, width), np.int64)

    return PaddedRows(
        prompt_ids=np.full((count, prompt_width), pad_token_id, np.int64),
        prompt_mask=np.zeros((count, prompt_width), np.int64),
        response_ids=np.full((count, width), pad_token_id, np.int64),
        response_mask=zeros(),
        loss_mask=zeros(),
        logprobs=np.zeros((count, width), np.float32),
        advantages=np.zeros((count, width), np.float32),
        rows=rows,
    )


def _fill(batch: PaddedRows, index: int, row: Row) -> None:
    length = row.response_ids.size
    batch.prompt_ids[index, -row.start :] = row.prompt_ids
    batch.prompt_mask[index, -row.start :] = 1
    batch.response_ids[index, :length] = row.response_ids
    batch.response_mask[index, :length] = 1
    batch.loss_mask[index, :length] = row.loss_mask
    batch.logprobs[index, :length] = row.logprobs
    batch.advantages[index, :length] = row.advantages
