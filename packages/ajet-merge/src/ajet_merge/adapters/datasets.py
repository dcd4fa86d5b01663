"""Hugging Face `datasets`: rows as a typed table, for storage and for one's own training loop."""

from typing import TYPE_CHECKING, Any

from ajet_merge.forest import Forest

from ._optional import optional
from .rows import trained_rows

if TYPE_CHECKING:
    from datasets import Dataset


def to_dataset(forest: Forest, max_length: int | None = None) -> "Dataset":
    """The rows of a forest as a `datasets.Dataset`, one example for each row of n tokens that trains something.

    Nothing is padded or shifted: entry i of a column is about token i of the row. A loop gets the loss as
    `sum(weights * loss)` over the tokens with `loss_mask` 1, where token i's logprob comes from the logits at i - 1.

    Columns:
        input_ids: list of int32, n ids.
        loss_mask: list of uint8, 1 = trained; the first is always 0.
        logprobs: list of float32, the rollout's logprob of each trained token, 0 elsewhere.
        advantages: list of float32, 0 where not trained.
        weights: list of float32, 0 where not trained. Not folded into `advantages`.
        calls: list of int32, indices into `Forest.calls` of the calls trained here.
        call_ids, episode_ids: lists of strings, of these calls.
        compat_key: string, common to these calls.
        context_exact: bool; where False, `logprobs` must not be the denominator of a ratio.

    Args:
        forest: the merged calls, with weights and advantages set.
        max_length: most tokens n in a row; None sets no limit.

    Raises:
        MergeError: datasets is missing, or a row is longer than `max_length` (rows are never truncated).
    """
    datasets = optional("datasets", "pip install datasets")
    lines = [row.timeline for row in trained_rows(forest, max_length)]
    owned = [[forest.calls[index] for index in line.calls] for line in lines]
    return datasets.Dataset.from_dict(
        {
            "input_ids": [line.tokens for line in lines],
            "loss_mask": [line.mask for line in lines],
            "logprobs": [line.logprobs for line in lines],
            "advantages": [line.advantage for line in lines],
            "weights": [line.weight for line in lines],
            "calls": [list(line.calls) for line in lines],
            "call_ids": [[call.call_id for call in calls] for calls in owned],
            "episode_ids": [[call.episode_id for call in calls] for calls in owned],
            "compat_key": [calls[0].compat_key for calls in owned],
            "context_exact": [line.context_exact for line in lines],
        },
        features=_features(datasets),
    )


def _features(datasets: Any) -> Any:
    def lists(dtype: str) -> Any:
        return datasets.List(datasets.Value(dtype))

    return datasets.Features(
        {
            "input_ids": lists("int32"),
            "loss_mask": lists("uint8"),
            "logprobs": lists("float32"),
            "advantages": lists("float32"),
            "weights": lists("float32"),
            "calls": lists("int32"),
            "call_ids": lists("string"),
            "episode_ids": lists("string"),
            "compat_key": datasets.Value("string"),
            "context_exact": datasets.Value("bool"),
        }
    )
