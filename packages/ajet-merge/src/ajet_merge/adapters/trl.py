"""TRL: the inputs of `GRPOTrainer`'s loss, and what a `rollout_func` returns (TRL 1.16)."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ajet_merge.errors import MergeError
from ajet_merge.forest import Forest

from ._optional import optional
from .padded import to_padded
from .rows import Row, refuse_inexact, trained_rows

REMEDY = "pass recompute_logprobs=True and let the trainer compute the old logprobs"


def to_grpo_batch(
    forest: Forest,
    *,
    pad_token_id: int,
    prompt_length: int | None = None,
    response_length: int | None = None,
    multiple_of: int = 1,
    recompute_logprobs: bool = False,
) -> dict[str, Any]:
    """The rows of a forest as the dict of torch tensors that `GRPOTrainer._generate_and_score_completions` returns.

    Override that method in a subclass of `GRPOTrainer` and return this: B rows, P prompt and C completion columns, on
    the CPU; B is `per_device_train_batch_size * steps_per_generation`. With `loss_type="dapo"` (default) or "cispo",
    `beta=0`, no entropy bonus, `steps_per_generation` equal to `gradient_accumulation_steps` (the default), and
    `vllm_importance_sampling_correction=False`, the loss of a step is the sum of weight * loss over all occurrences of
    all processes. The other loss types divide by rows or tokens once more. Set `temperature` to the one that the
    completions were sampled with, as the trainer divides its logits by it.

    Fields:
        prompt_ids: i64[B, P], padded on the left.
        prompt_mask: i64[B, P], 1 = a token.
        completion_ids: i64[B, C], padded on the right, from the first trained token of the row on.
        completion_mask: i64[B, C], 1 = a token, trained or not: the trainer attends by it.
        tool_mask: i64[B, C], 1 = trained; 0 for tool results, user turns and padding. The loss mask.
        advantages: f32[B, C], advantage * weight, 0 where not trained.
        num_items_in_batch: f32 scalar 1: "dapo" and "cispo" divide by it, and the weights hold every division already.
        old_per_token_logps: f32[B, C], the rollout's logprobs, 0 where not trained; not with `recompute_logprobs`.

    Args:
        forest: the merged calls, with weights and advantages set.
        pad_token_id: the id that fills prompts and completions.
        prompt_length: P; None takes the longest prompt.
        response_length: C; None takes the longest completion.
        multiple_of: B is rounded up to a multiple of this with dummies that train nothing.
        recompute_logprobs: leave `old_per_token_logps` out. The trainer then takes the current ones, which is right for
            the first update after the rollout only.

    Raises:
        MergeError: torch is missing, no call trains a token, a row does not fit (rows are never truncated), a row has
            `context_exact` False and its logprobs are not recomputed, or an argument is out of range.
    """
    torch = optional("torch", "pip install torch")
    rows = to_padded(
        forest,
        pad_token_id=pad_token_id,
        prompt_length=prompt_length,
        response_length=response_length,
        multiple_of=multiple_of,
    )
    arrays = {
        "prompt_ids": rows.prompt_ids,
        "prompt_mask": rows.prompt_mask,
        "completion_ids": rows.response_ids,
        "completion_mask": rows.response_mask,
        "tool_mask": rows.loss_mask,
        "advantages": rows.advantages,
    }
    if not recompute_logprobs:
        refuse_inexact(rows.rows, REMEDY)
        arrays["old_per_token_logps"] = rows.logprobs
    batch: dict[str, Any] = {name: torch.from_numpy(array) for name, array in arrays.items()}
    batch["num_items_in_batch"] = torch.tensor(1.0)
    return batch


def to_rollout(forest: Forest, episode_ids: Sequence[str], *, recompute_logprobs: bool = False) -> dict[str, Any]:
    """One row for each episode as plain lists: what a `rollout_func` of `GRPOTrainer` returns.

    The trainer wants one row for each prompt it gave, in their order, and computes advantages from its own reward
    functions; the forest's advantages and weights have no place here. With `loss_type="dapo"` its loss is a mean over
    the trained tokens of all rows, which is what `weights.token_mean` weighs. An episode that needs several rows
    (sub-agents, edited contexts) cannot be expressed; use `to_grpo_batch`.

    Fields, one list for each row:
        prompt_ids: P ids.
        completion_ids: C ids, from the first trained token of the row on.
        logprobs: C rollout logprobs, 0 where not trained; None in place of all lists with `recompute_logprobs`.
        env_mask: C times 1 (trained) or 0 (tool results, user turns).

    Args:
        forest: the merged calls of these episodes.
        episode_ids: `Call.episode_id` of each prompt, in the order of the prompts that the trainer passed.
        recompute_logprobs: give no logprobs. The trainer then has no importance-sampling correction.

    Raises:
        MergeError: an episode is given twice, has no row or several; a row belongs to no episode of the list or to
            several, or has `context_exact` False and its logprobs are not left out.
    """
    repeated = [episode for episode, count in Counter(episode_ids).items() if count > 1]
    if repeated:
        raise MergeError(f"episode_ids holds {repeated[0]!r} more than once: each prompt needs an episode of its own")
    found = _row_of_each_episode(forest)
    unknown = sorted(found.keys() - set(episode_ids))
    if unknown:
        raise MergeError(f"episode {unknown[0]!r} of the forest is not among the {len(episode_ids)} episode_ids given")
    for episode in episode_ids:
        if episode not in found:
            raise MergeError(f"episode {episode!r} has no row: none of its calls trains a token")
    rows = [found[episode] for episode in episode_ids]
    if not recompute_logprobs:
        refuse_inexact(rows, REMEDY)
    return {
        "prompt_ids": [row.prompt_ids.tolist() for row in rows],
        "completion_ids": [row.response_ids.tolist() for row in rows],
        "logprobs": None if recompute_logprobs else [row.logprobs.tolist() for row in rows],
        "env_mask": [row.loss_mask.tolist() for row in rows],
    }


def _row_of_each_episode(forest: Forest) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for row in trained_rows(forest):
        episodes = sorted({forest.calls[call].episode_id for call in row.timeline.calls})
        if len(episodes) > 1:
            raise MergeError(f"{row.name}: belongs to episodes {episodes}, but the trainer wants one row for each")
        if episodes[0] in found:
            raise MergeError(
                f"{row.name}: a second row of episode {episodes[0]!r}, after the {found[episodes[0]].name}, but the "
                "trainer takes one for each prompt; use to_grpo_batch"
            )
        found[episodes[0]] = row
    return found
