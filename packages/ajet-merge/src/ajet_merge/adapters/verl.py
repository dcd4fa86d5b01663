"""verl: a `DataProto` with the fields that its actor update reads (verl 0.9)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ajet_merge.forest import Forest

from ._optional import optional
from .padded import PaddedRows, to_padded
from .rows import refuse_inexact


def to_dataproto(
    forest: Forest,
    *,
    pad_token_id: int,
    prompt_length: int | None = None,
    response_length: int | None = None,
    multiple_of: int = 1,
    recompute_logprobs: bool = False,
) -> Any:
    """The rows of a forest as a `verl.DataProto` of B rows, P prompt and R response columns, on the CPU.

    Set `actor.loss_agg_mode: token-sum`, `actor.entropy_coeff: 0`, `actor.use_kl_loss: false`, and a mini-batch of all
    B rows (`ppo_mini_batch_size * rollout.n`): the loss of the step is then the sum of weight * loss over all
    occurrences, whatever the number of ranks and micro-batches. The other modes divide by rows or tokens once more. The
    policy loss must have a ratio for each token, as "vanilla" has; "gspo" takes one over a row, which may hold several
    calls. Do not run verl's `compute_advantage` on the batch, as it overwrites `advantages`.

    Tensors (`batch`):
        prompts: i64[B, P], padded on the left.
        responses: i64[B, R], padded on the right, from the first trained token of the row on.
        input_ids: i64[B, P + R], the two joined.
        attention_mask: i64[B, P + R], 1 = a token.
        position_ids: i64[B, P + R], position in the row, 0 in the padding before it.
        response_mask: i64[B, R], 1 = trained; 0 for tool results, user turns and padding.
        advantages: f32[B, R], advantage * weight, 0 where not trained.
        old_log_probs, rollout_log_probs: f32[B, R], the rollout's logprobs, 0 where not trained; not with
            `recompute_logprobs`.

    Arrays of objects (`non_tensor_batch`), one for each row:
        calls: tuple of indices into `Forest.calls`; empty for a dummy.
        compat_key: the `compat_key` of these calls; "" for a dummy.

    Args:
        forest: the merged calls, with weights and advantages set.
        pad_token_id: the id that fills prompts and responses.
        prompt_length: P; None takes the longest prompt.
        response_length: R; None takes the longest response.
        multiple_of: B is rounded up to a multiple of this (ranks * micro-batch size) with dummies that train nothing.
        recompute_logprobs: leave both logprob fields out, because the actor computes `old_log_probs` before the update.

    Raises:
        MergeError: torch or verl is missing, no call trains a token, a row does not fit (rows are never truncated), a
            row has `context_exact` False and its logprobs are not recomputed, or an argument is out of range.
    """
    torch = optional("torch", "pip install torch")
    protocol = optional("verl.protocol", "pip install verl")
    rows = to_padded(
        forest,
        pad_token_id=pad_token_id,
        prompt_length=prompt_length,
        response_length=response_length,
        multiple_of=multiple_of,
    )
    tensors = _fields(rows)
    if not recompute_logprobs:
        refuse_inexact(rows.rows, "pass recompute_logprobs=True and let the actor compute old_log_probs")
        tensors |= {"old_log_probs": rows.logprobs, "rollout_log_probs": rows.logprobs.copy()}
    return protocol.DataProto.from_dict(
        tensors={name: torch.from_numpy(array) for name, array in tensors.items()},
        non_tensors=_objects(forest, rows),
    )


def _fields(rows: PaddedRows) -> dict[str, NDArray[Any]]:
    attention = np.concatenate([rows.prompt_mask, rows.response_mask], axis=1)
    return {
        "prompts": rows.prompt_ids,
        "responses": rows.response_ids,
        "input_ids": np.concatenate([rows.prompt_ids, rows.response_ids], axis=1),
        "attention_mask": attention,
        "position_ids": np.maximum(np.cumsum(attention, axis=1) - 1, 0),
        "response_mask": rows.loss_mask,
        "advantages": rows.advantages,
    }


def _objects(forest: Forest, rows: PaddedRows) -> dict[str, NDArray[Any]]:
    dummies = rows.prompt_ids.shape[0] - len(rows.rows)
    calls = np.empty(rows.prompt_ids.shape[0], object)  # np.array(list of tuples) would be a matrix if lengths agree
    calls[:] = [row.timeline.calls for row in rows.rows] + [()] * dummies
    keys = [forest.calls[row.timeline.calls[0]].compat_key for row in rows.rows] + [""] * dummies
    return {"calls": calls, "compat_key": np.array(keys, object)}
