"""Tinker: `Datum`s for its policy losses (tinker 0.38)."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ajet_merge.forest import Forest

from ._optional import optional
from .rows import Row, refuse_inexact, trained_rows

if TYPE_CHECKING:
    from tinker import Datum


def to_datums(forest: Forest, max_length: int | None = None) -> "list[Datum]":
    """The rows of a forest as `tinker.Datum`s, one for each row of n tokens that trains something.

    For `forward_backward(datums, loss_fn="importance_sampling")`, "ppo" or "cispo". They sum over tokens and data and
    divide by nothing, so the loss of one call with all datums, or of several before one `optim_step`, is the sum of
    weight * loss over all occurrences. The other losses cannot be used with these datums: "dro" is not proportional to
    the advantage, "cross_entropy" and "gspo" want other fields.

    Fields, shifted by one as Tinker wants it: entry i is about token i + 1 of the row, which input token i predicts.
        model_input: tokens[:-1], n - 1 ids.
        target_tokens: i64[n - 1], tokens[1:].
        logprobs: f32[n - 1], the rollout's logprob of each trained target, 0 elsewhere.
        advantages: f32[n - 1], advantage * weight of each trained target, 0 elsewhere. There is no mask: a token of
            advantage 0 adds 0 to these losses, whatever its logprob.

    Args:
        forest: the merged calls, with weights and advantages set.
        max_length: most tokens n in a row; None sets no limit.

    Raises:
        MergeError: tinker is missing, a row is longer than `max_length` (rows are never truncated), or a row has
            `context_exact` False: `logprobs` are always denominators here.
    """
    tinker = optional("tinker", "pip install tinker")
    rows = trained_rows(forest, max_length)
    refuse_inexact(
        rows,
        "compute the logprobs in the new context, and make the calls anew with those and context_exact=True",
    )
    return [_datum(tinker, row) for row in rows]


def _datum(tinker: Any, row: Row) -> "Datum":
    line = row.timeline
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(line.tokens[:-1].tolist()),
        loss_fn_inputs={
            "target_tokens": line.tokens[1:].astype(np.int64),
            "logprobs": line.logprobs[1:].copy(),
            "advantages": (line.advantage * line.weight)[1:],
        },
    )
